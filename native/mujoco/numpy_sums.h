// numpy's order of summation, so that rewards equal Gymnasium's to the last bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace envfleet::mujoco {

// np.sum of a contiguous array: eight running sums for up to 128 values, halves for more.
template <class T, class Value>
T pairwise_sum(const Value& value, std::ptrdiff_t begin, std::ptrdiff_t count) {
  if (count < 8) {
    T total = 0;
    for (std::ptrdiff_t i = 0; i < count; ++i) total += value(begin + i);
    return total;
  }
  if (count <= 128) {
    T sums[8];
    for (int k = 0; k < 8; ++k) sums[k] = value(begin + k);
    std::ptrdiff_t i = 8;
    for (; i < count - count % 8; i += 8) {
      for (int k = 0; k < 8; ++k) sums[k] += value(begin + i + k);
    }
    T total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    for (; i < count; ++i) total += value(begin + i);
    return total;
  }
  std::ptrdiff_t half = count / 2;
  half -= half % 8;
  return pairwise_sum<T>(value, begin, half) + pairwise_sum<T>(value, begin + half, count - half);
}

// np.square(values).sum() in the values' own type: float32 for actions.
template <class T>
T sum_of_squares(const T* values, std::ptrdiff_t count) {
  return pairwise_sum<T>([values](std::ptrdiff_t i) { return values[i] * values[i]; }, 0, count);
}

// np.clip: NaN stays NaN.
inline double clip(double value, double low, double high) {
  if (std::isnan(value)) return value;
  return std::min(std::max(value, low), high);
}

// np.linalg.norm of a few values. numpy calls BLAS for the dot product, which uses fused multiply-adds on every CPU that
// has them; on one that has not, the last bit may differ from Gymnasium's.
inline double norm(const double* values, int count) {
  double total = 0;
  for (int i = 0; i < count; ++i) total = std::fma(values[i], values[i], total);
  return std::sqrt(total);
}

inline bool all_finite(const double* values, int count) {
  return std::all_of(values, values + count, [](double value) { return std::isfinite(value); });
}

}  // namespace envfleet::mujoco
