#include "kernels/resize_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace envfleet::kernels {

namespace {

constexpr std::uint32_t kLinearTotal = 2048;  // as finely as OpenCV weighs

ResizeWeights area_weights(int source, int target) {
  ResizeWeights weights;
  const int common = std::gcd(source, target);
  // In units of which a source pixel is `wide` and an output pixel `reach` wide, both are whole numbers.
  const std::int64_t wide = target / common;
  const std::int64_t reach = source / common;
  weights.total = static_cast<std::uint32_t>(reach);
  for (int i = 0; i < target; ++i) {
    const std::int64_t begin = i * reach;
    weights.first.push_back(static_cast<std::int32_t>(begin / wide));
    const std::int64_t last = (begin + reach - 1) / wide;
    weights.max_count = std::max(weights.max_count, static_cast<int>(last - weights.first.back() + 1));
  }
  weights.weight.assign(static_cast<std::size_t>(target) * weights.max_count, 0);
  for (int i = 0; i < target; ++i) {
    const std::int64_t begin = i * reach;
    for (int k = 0; k < weights.max_count; ++k) {
      const std::int64_t left = (weights.first[i] + k) * wide;
      const std::int64_t covered = std::min(left + wide, begin + reach) - std::max(left, begin);
      if (covered > 0)
        weights.weight[static_cast<std::size_t>(i) * weights.max_count + k] = static_cast<std::uint32_t>(covered);
    }
  }
  return weights;
}

// Between two neighbours. The position and the part of the second of them are OpenCV's.
ResizeWeights linear_weights(int source, int target, bool of_area) {
  ResizeWeights weights;
  weights.max_count = source > 1 ? 2 : 1;
  weights.total = kLinearTotal;
  // Rounded twice, as OpenCV does: where a pixel begins exactly on another, it decides which of them counts.
  const double growth = static_cast<double>(target) / source;
  const double scale = 1 / growth;
  for (int i = 0; i < target; ++i) {
    double position, part;
    if (of_area) {
      position = std::floor(i * scale);
      part = static_cast<float>((i + 1) - (position + 1) * growth);
      part = part <= 0 ? 0 : part - std::floor(part);
    } else {
      const double centre = (i + 0.5) * scale - 0.5;
      position = std::floor(centre);
      part = centre - position;
    }
    if (position < 0) position = part = 0;
    auto first = static_cast<std::int32_t>(position);
    auto second_weight = static_cast<std::uint32_t>(std::lround(part * kLinearTotal));
    if (first >= source - 1) {  // the last pixel has no neighbour: it is the second of its pair
      first = std::max(source - 2, 0);
      second_weight = kLinearTotal;
    }
    weights.first.push_back(first);
    if (weights.max_count == 1) {
      weights.weight.push_back(kLinearTotal);
    } else {
      weights.weight.insert(weights.weight.end(), {kLinearTotal - second_weight, second_weight});
    }
  }
  return weights;
}

}  // namespace

ResizeWeights make_resize_weights(int source, int target, Resize how, bool may_grow) {
  if (source == target) return area_weights(source, target);  // one pixel of weight 1
  if (how == Resize::kArea && !may_grow) return area_weights(source, target);
  return linear_weights(source, target, how == Resize::kArea);
}

Divider::Divider(std::uint32_t divisor) : half_(divisor / 2) {
  const int bits = static_cast<int>(std::bit_width(divisor - 1));
  shift_ = 31 + bits;
  factor_ = ((std::uint64_t{1} << shift_) + divisor - 1) / divisor;
}

}  // namespace envfleet::kernels
