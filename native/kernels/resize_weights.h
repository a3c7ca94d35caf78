// ResizeWeights: the source pixels of each output pixel along one axis, with integer weights.
//
// A picture is resized by the weights of its rows and those of its columns. Integer sums are exact, so every
// implementation (scalar, SIMD) produces the same picture.
//
// Thread safety: immutable once made.
#pragma once

#include <cstdint>
#include <vector>

namespace envfleet::kernels {

enum class Resize : std::uint8_t { kArea, kLinear };

struct ResizeWeights {
  int max_count = 0;
  std::uint32_t total = 1;            // what the weights of one output pixel add up to
  std::vector<std::int32_t> first;    // by output pixel: its first source pixel
  std::vector<std::uint32_t> weight;  // max_count per output pixel; unused ones are 0

  int size() const { return static_cast<int>(first.size()); }
  const std::uint32_t* weights_of(int target) const { return weight.data() + static_cast<std::size_t>(target) * max_count; }
};

// The weights of one axis. Area: the part of each source pixel that an output pixel covers. If the picture grows along
// either axis (may_grow), area is OpenCV's definition: interpolation over the edges of its pixels.
ResizeWeights make_resize_weights(int source, int target, Resize how, bool may_grow);

// Division by a constant, rounding half up: exact for numerators below 2^31.
class Divider {
 public:
  explicit Divider(std::uint32_t divisor);
  std::uint32_t operator()(std::uint32_t sum) const {
    return static_cast<std::uint32_t>((static_cast<std::uint64_t>(sum + half_) * factor_) >> shift_);
  }

 private:
  std::uint32_t half_;
  std::uint64_t factor_;
  int shift_;
};

}  // namespace envfleet::kernels
