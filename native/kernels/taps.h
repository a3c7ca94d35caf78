// Taps: which pixels of a line an output pixel is made of, and with what weights, in whole numbers.
//
// A picture is resized by the taps of its lines and the taps of its columns. Sums of whole numbers are
// exact, so every way of computing them (scalar, SIMD) gives the same picture.
#pragma once

#include <cstdint>
#include <vector>

namespace envfleet::kernels {

enum class Resize : std::uint8_t { kArea, kLinear };

struct Taps {
  int max_count = 0;
  std::uint32_t total = 1;            // what the weights of one output pixel add up to
  std::vector<std::int32_t> first;    // of each output pixel: its first source pixel
  std::vector<std::uint32_t> weight;  // max_count of each output pixel; those past its own are 0

  int size() const { return static_cast<int>(first.size()); }
  const std::uint32_t* weights_of(int target) const { return weight.data() + static_cast<std::size_t>(target) * max_count; }
};

// The taps of one axis. Area shrinks by the part of each source pixel that an output pixel covers. Where a
// picture grows along either axis (may_grow), area is OpenCV's: interpolation over the edges of its pixels.
Taps make_taps(int source, int target, Resize how, bool may_grow);

// Division by a constant that rounds half up: exact for numerators below 2^31.
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
