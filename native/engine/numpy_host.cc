#include "engine/numpy_host.h"

#include <bit>
#include <cmath>

#include "engine/sine_cosine.h"
#include "numpy/random/bitgen.h"

// From numpy's own library npyrandom, linked statically. Declared here and not by
// numpy/random/distributions.h, which pulls in Python.h and would tie the engine to it.
extern "C" {
double random_standard_normal(bitgen_t*);
float random_standard_normal_f(bitgen_t*);
double random_standard_exponential(bitgen_t*);
double random_standard_gamma(bitgen_t*, double shape);
double random_beta(bitgen_t*, double a, double b);
int64_t random_poisson(bitgen_t*, double rate);
}

namespace envfleet::engine {

namespace {

static_assert(sizeof(ef_bitgen) == sizeof(bitgen_t), "abi.h must keep the layout that numpy publishes");

bitgen_t* as_numpy(ef_bitgen* bitgen) { return reinterpret_cast<bitgen_t*>(bitgen); }

UfuncLoops loops[kNumFunctions];

double c_library(Function function, double value) {
  switch (function) {
    case kSin:
      return std::sin(value);
    case kCos:
      return std::cos(value);
    case kExp:
      return std::exp(value);
    case kLog1p:
      return std::log1p(value);
    case kTanh:
      return std::tanh(value);
    default:
      return std::asinh(value);
  }
}
float c_library(Function function, float value) { return function == kSinF ? std::sin(value) : std::cos(value); }

template <Function function, class Real>
void apply(const Real* in, Real* out, std::int64_t count) noexcept {
  const UfuncLoops& own = loops[function];
  if (own.loop == nullptr) {  // without Python, in the engine's own tests
    for (std::int64_t i = 0; i < count; ++i) out[i] = c_library(function, in[i]);
    return;
  }
  char* args[] = {const_cast<char*>(reinterpret_cast<const char*>(in)), reinterpret_cast<char*>(out)};
  const std::intptr_t size = count;
  const std::intptr_t steps[] = {sizeof(Real), sizeof(Real)};
  own.loop(args, &size, steps, own.data);
}

// Whether sin and cos of many values are those of sine_cosine.h, because numpy calls the C library. This is tested, not
// assumed: some versions of numpy have vector code of their own.
bool uses_fast_sine = false;

bool calls_c_library(Function function) {
  constexpr int kCount = 1024;
  double angles[kCount], results[kCount];
  for (int i = 0; i < kCount; ++i) angles[i] = (i + 0.37) / kCount - 0.5;
  function == kSin ? apply<kSin>(angles, results, kCount) : apply<kCos>(angles, results, kCount);
  for (int i = 0; i < kCount; ++i) {
    if (std::bit_cast<std::uint64_t>(results[i]) != std::bit_cast<std::uint64_t>(c_library(function, angles[i])))
      return false;
  }
  return true;
}

// A call for a few values costs less than the test whether they are in the range of the series.
constexpr std::int64_t kManyValues = 8;

void sin(const double* in, double* out, std::int64_t count) noexcept {
  uses_fast_sine&& count >= kManyValues ? fast_sine(in, out, count) : apply<kSin>(in, out, count);
}

void cos(const double* in, double* out, std::int64_t count) noexcept {
  uses_fast_sine&& count >= kManyValues ? fast_cosine(in, out, count) : apply<kCos>(in, out, count);
}

double arctan2(double y, double x) noexcept {
  const UfuncLoops& own = loops[kArctan2];
  if (own.loop == nullptr) return std::atan2(y, x);
  double result;
  char* args[] = {reinterpret_cast<char*>(&y), reinterpret_cast<char*>(&x), reinterpret_cast<char*>(&result)};
  const std::intptr_t size = 1;
  const std::intptr_t steps[] = {sizeof(double), sizeof(double), sizeof(double)};
  own.loop(args, &size, steps, own.data);
  return result;
}

}  // namespace

void use_numpy_loop(Function function, UfuncLoops own) { loops[function] = own; }

void choose_sine() { uses_fast_sine = has_fast_sine() && calls_c_library(kSin) && calls_c_library(kCos); }

const ef_host* numpy_host() {
  static const ef_host host{
      ENVFLEET_ABI_VERSION,
      ENVFLEET_ABI_LAYOUT,
      [](ef_bitgen* bitgen) noexcept { return random_standard_normal(as_numpy(bitgen)); },
      [](ef_bitgen* bitgen) noexcept { return random_standard_normal_f(as_numpy(bitgen)); },
      [](ef_bitgen* bitgen) noexcept { return random_standard_exponential(as_numpy(bitgen)); },
      [](ef_bitgen* bitgen, double shape) noexcept { return random_standard_gamma(as_numpy(bitgen), shape); },
      [](ef_bitgen* bitgen, double a, double b) noexcept { return random_beta(as_numpy(bitgen), a, b); },
      [](ef_bitgen* bitgen, double rate) noexcept { return random_poisson(as_numpy(bitgen), rate); },
      &sin,
      &cos,
      &apply<kSinF, float>,
      &apply<kCosF, float>,
      &apply<kExp, double>,
      &apply<kLog1p, double>,
      &apply<kTanh, double>,
      &apply<kArcsinh, double>,
      &arctan2,
  };
  return &host;
}

}  // namespace envfleet::engine
