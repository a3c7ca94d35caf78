// Compiled without contraction: the sums below must round as they are written.
#include "engine/sine_cosine.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "envfleet/lanes.h"

namespace envfleet::engine {

namespace {

constexpr int kLanes = 8;
constexpr std::int64_t kBlock = 64;  // one bit each
constexpr double kPadding = 0.25;    // an angle for lanes without one
// The series are exact to a hundredth of a unit up to here.
constexpr double kMaxAngle = 0.5;
// Below it, a sine has the sign of a zero to keep, or no bits left for the test of the rounding.
constexpr double kMinAngle = 1e-7;
// In units in the last place, the distance from the nearest double up to which the rounding is certain. glibc documents
// errors of at most 0.518 for sines and 0.51 for cosines in this range, of which 0.5 are the rounding itself; ours before
// the rounding are 0.0024 and 0.0001 (measured against 113 bits). Its comment that sines of angles below 0.126 err by 0.501
// at most does not hold: 0.506 was measured.
constexpr double kCertainSine = 0.478, kCertainCosine = 0.487;

// The sum of a number and a much smaller one: rounded, and what the rounding lost.
struct Rounded {
  double value, lost;
};

inline Rounded rounded(double high, double tail) {
  const double value = high + tail;
  return {value, tail - (value - high)};
}

// Negative unless the C library can only return this value. Of integer arithmetic and without comparisons, so that the loop
// over the lanes becomes vector instructions.
inline std::int64_t certainty(const Rounded& own, double angle, double certain) {
  constexpr auto kMaxBits = std::bit_cast<std::int64_t>(kMaxAngle), kMinBits = std::bit_cast<std::int64_t>(kMinAngle);
  // Of a power of two, the unit is that of the smaller neighbor.
  const double below = own.value * (1 - 0x1p-53);
  const double power_of_two = std::bit_cast<double>(std::bit_cast<std::uint64_t>(below) & 0x7ff0000000000000u);
  const double margin = certain * 0x1p-52 * power_of_two - std::abs(own.lost);
  // The bits of positive doubles are ordered as the doubles are; those of infinities and NaNs are the largest.
  const auto size = std::bit_cast<std::int64_t>(std::abs(angle));
  return std::bit_cast<std::int64_t>(margin) | (kMaxBits - size) | (size - kMinBits);
}

// x - x^3/6 + x^5/120 - ...: the first two terms with twice the precision, the others are too small to need it.
inline Rounded sine(double x) {
  constexpr double kThird = -1.0 / 6, kThirdLow = -0x1.5555555555555p-57;
  const double x2 = x * x, x2_low = std::fma(x, x, -x2);
  const double x3 = x * x2, x3_low = std::fma(x, x2, -x3) + x * x2_low;
  const double third = x3 * kThird;
  const double third_low = std::fma(x3, kThird, -third) + std::fma(x3, kThirdLow, x3_low * kThird);
  const double x4 = x2 * x2;
  const double series = std::fma(
      x4, std::fma(x4, std::fma(x2, -1 / 1307674368000.0, 1 / 6227020800.0), std::fma(x2, -1 / 39916800.0, 1 / 362880.0)),
      std::fma(x2, -1 / 5040.0, 1 / 120.0));
  const double sum = x + third;
  return rounded(sum, ((x - sum) + third) + std::fma(x3 * x2, series, third_low));
}

// 1 - x^2/2 + x^4/24 - ...: the first three terms with twice the precision.
inline Rounded cosine(double x) {
  constexpr double kFourth = 1.0 / 24, kFourthLow = 0x1.5555555555555p-59;
  const double x2 = x * x, x2_low = std::fma(x, x, -x2);
  const double half = 0.5 * x2;
  const double x4 = x2 * x2, x4_low = std::fma(x2, x2, -x4) + 2 * x2 * x2_low;
  const double fourth = x4 * kFourth;
  const double fourth_low = std::fma(x4, kFourth, -fourth) + std::fma(x4, kFourthLow, x4_low * kFourth);
  const double series = std::fma(
      x4,
      std::fma(x4, std::fma(x2, 1 / 20922789888000.0, -1 / 87178291200.0), std::fma(x2, 1 / 479001600.0, -1 / 3628800.0)),
      std::fma(x2, 1 / 40320.0, -1 / 720.0));
  const double first = 1.0 - half;
  const double sum = first + fourth;
  const double lost = ((1.0 - first) - half) + ((first - sum) + fourth);
  return rounded(sum, lost + (std::fma(x4 * x2, series, fourth_low) - 0.5 * x2_low));
}

// Writes the values of up to kBlock angles, a multiple of kLanes, and returns which of them are uncertain, one bit each.
template <class Function>
[[gnu::always_inline]] inline std::uint64_t apply_to_block(const Function& function, double certain,
                                                           const double* __restrict in, double* __restrict out,
                                                           std::int64_t count) {
  std::uint64_t uncertain = 0;
  for (std::int64_t first = 0; first < count; first += kLanes) {
    std::int64_t certainties[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const Rounded own = function(in[first + i]);
      out[first + i] = own.value;
      certainties[i] = certainty(own, in[first + i], certain);
    }
    for (int i = 0; i < kLanes; ++i) uncertain |= (std::bit_cast<std::uint64_t>(certainties[i]) >> 63) << (first + i);
  }
  return uncertain;
}

ENVFLEET_VECTOR_CLONES std::uint64_t sines(const double* __restrict in, double* __restrict out, std::int64_t count) {
  return apply_to_block([](double x) { return sine(x); }, kCertainSine, in, out, count);
}

ENVFLEET_VECTOR_CLONES std::uint64_t cosines(const double* __restrict in, double* __restrict out, std::int64_t count) {
  return apply_to_block([](double x) { return cosine(x); }, kCertainCosine, in, out, count);
}

template <class Block, class CLibrary>
void apply(const Block& block, const CLibrary& c_library, const double* in, double* out, std::int64_t count) noexcept {
  double angles[kBlock], results[kBlock];
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t size = std::min(count - first, kBlock);
    const std::int64_t padded_size = (size + kLanes - 1) / kLanes * kLanes;
    std::copy_n(in + first, size, angles);  // in may be out
    std::fill(angles + size, angles + padded_size, kPadding);
    std::uint64_t uncertain = block(angles, results, padded_size);
    std::copy_n(results, size, out + first);
    for (; uncertain != 0; uncertain &= uncertain - 1) {
      const int i = std::countr_zero(uncertain);
      if (i < size) out[first + i] = c_library(angles[i]);
    }
  }
}

}  // namespace

bool has_fast_sine() {
  // Without the clones, each fused multiply-add would be a call.
#if defined(__GLIBC__) && ENVFLEET_HAS_VECTOR_CLONES
  return __builtin_cpu_supports("x86-64-v3") != 0;
#else
  return false;
#endif
}

void fast_sine(const double* in, double* out, std::int64_t count) noexcept {
  apply(sines, [](double angle) { return std::sin(angle); }, in, out, count);
}

void fast_cosine(const double* in, double* out, std::int64_t count) noexcept {
  apply(cosines, [](double angle) { return std::cos(angle); }, in, out, count);
}

}  // namespace envfleet::engine
