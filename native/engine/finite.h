// Whether numbers are finite: neither NaN nor infinite. For check_finite.
//
// Thread safety: pure functions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "envfleet/abi.h"

namespace envfleet::engine {

// Bits: an unsigned integer as wide as the numbers; kExponent: the lowest bit of their exponents. Adding it carries into the
// sign's place only if all bits of the exponent are set, as in NaN and infinity. One test after the loop, which therefore
// becomes vector instructions.
template <class Bits, Bits kExponent>
bool are_finite(const void* numbers, std::int64_t count) {
  constexpr Bits kSign = Bits(Bits{1} << (8 * sizeof(Bits) - 1));
  const char* next = static_cast<const char*>(numbers);
  Bits carries = 0;
  for (std::int64_t i = 0; i < count; ++i, next += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, next, sizeof bits);
    carries = Bits(carries | Bits((bits & Bits(~kSign)) + kExponent));
  }
  return (carries & kSign) == 0;
}

inline bool are_finite_halves(const void* numbers, std::int64_t count) {
  return are_finite<std::uint16_t, 0x0400u>(numbers, count);
}
inline bool are_finite_floats(const void* numbers, std::int64_t count) {
  return are_finite<std::uint32_t, 0x0080'0000u>(numbers, count);
}
inline bool are_finite_doubles(const void* numbers, std::int64_t count) {
  return are_finite<std::uint64_t, 0x0010'0000'0000'0000u>(numbers, count);
}

// The same for `count` elements of an ef_dtype; integers are always finite.
inline bool are_finite(std::int32_t dtype, const void* numbers, std::int64_t count) {
  if (dtype == EF_FLOAT32) return are_finite_floats(numbers, count);
  return dtype != EF_FLOAT64 || are_finite_doubles(numbers, count);
}

inline bool is_finite(double number) { return are_finite_doubles(&number, 1); }

inline const char* name_of_non_finite(double number) {
  return std::isnan(number) ? "nan" : std::signbit(number) ? "-inf" : "inf";
}

}  // namespace envfleet::engine
