// numpy's functions (sin, cos, exp, ...) and its scalar square, for envs that must match a Python original bit for bit.
//
// numpy runs its own vector code on some CPUs and the C library's functions on others. These functions call the same inner
// loops as np.sin, np.cos and so on, so they return what numpy returns on the same machine. Calls over several values cost
// less per value than calls for one.
//
// Thread safety: any thread, once an env of this library has been made.
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "envfleet/abi.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

namespace detail {

// The engine that runs this library's envs. Set when the first fleet is made; it never changes afterwards.
inline std::atomic<const ef_host*> engine_host{nullptr};

[[noreturn, gnu::noinline, gnu::cold]] inline void throw_no_host() {
  throw std::logic_error("numpy's functions were called before an env was constructed: not in params() or spec()");
}

inline const ef_host& host() {
  const ef_host* host = engine_host.load(std::memory_order_relaxed);
  if (host == nullptr) [[unlikely]]
    throw_no_host();
  return *host;
}

}  // namespace detail

namespace numpy {

inline void sin(const double* in, double* out, std::int64_t count) { detail::host().sin(in, out, count); }
inline void cos(const double* in, double* out, std::int64_t count) { detail::host().cos(in, out, count); }
inline void sin(const float* in, float* out, std::int64_t count) { detail::host().sin_f(in, out, count); }
inline void cos(const float* in, float* out, std::int64_t count) { detail::host().cos_f(in, out, count); }
inline void exp(const double* in, double* out, std::int64_t count) { detail::host().exp(in, out, count); }
inline void log1p(const double* in, double* out, std::int64_t count) { detail::host().log1p(in, out, count); }
inline void tanh(const double* in, double* out, std::int64_t count) { detail::host().tanh(in, out, count); }
inline void arcsinh(const double* in, double* out, std::int64_t count) { detail::host().arcsinh(in, out, count); }
inline double arctan2(double y, double x) { return detail::host().arctan2(y, x); }
inline double exp(double value) {
  exp(&value, &value, 1);
  return value;
}

template <class Real>
Real sin(Real value) {
  sin(&value, &value, 1);
  return value;
}

template <class Real>
Real cos(Real value) {
  cos(&value, &value, 1);
  return value;
}

// x ** 2 of a numpy or Python scalar: the C library's pow(x, 2), which in one case of a thousand differs from x * x.
//
// The product is what pow() returns unless the exact square lies close to the middle between two doubles: pow()
// errs by less than 0.6 units in the last place, and any other double is further away than that. Only near a middle
// is pow() called, which takes longer than an env's other arithmetic.
inline double squared(double value) {
  const double product = value * value;
  // The exact square minus the product: Dekker's method, with Veltkamp's split of the value in two halves.
  const double scaled = 134217729.0 * value;  // 2^27 + 1
  const double high = scaled - (scaled - value);
  const double low = value - high;
  const double error = ((high * high - product) + 2.0 * high * low) + low * low;
  const auto exponent = std::bit_cast<std::uint64_t>(product) & 0x7ff0000000000000u;
  const double unit = std::bit_cast<double>(exponent) * 0x1p-52;
  if (product > 1e-250 && product < 1e250 && std::abs(error) < 0.4 * unit) return product;
  // Through a volatile pointer, or the compiler would turn it into a multiplication again.
  static double (*const volatile power)(double, double) = static_cast<double (*)(double, double)>(&std::pow);
  return power(value, 2.0);
}

inline float squared(float value) {
  static float (*const volatile power)(float, float) = static_cast<float (*)(float, float)>(&std::pow);
  return power(value, 2.0f);
}

}  // namespace numpy

}  // namespace envfleet

#pragma GCC visibility pop
