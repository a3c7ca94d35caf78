#include "numpy_random.h"

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

}  // namespace

const ef_host* numpy_host() {
  static const ef_host host{
      ENVFLEET_ABI_VERSION,
      sizeof(ef_host),
      [](ef_bitgen* bitgen) { return random_standard_normal(as_numpy(bitgen)); },
      [](ef_bitgen* bitgen) { return random_standard_normal_f(as_numpy(bitgen)); },
      [](ef_bitgen* bitgen) { return random_standard_exponential(as_numpy(bitgen)); },
      [](ef_bitgen* bitgen, double shape) { return random_standard_gamma(as_numpy(bitgen), shape); },
      [](ef_bitgen* bitgen, double a, double b) { return random_beta(as_numpy(bitgen), a, b); },
      [](ef_bitgen* bitgen, double rate) { return random_poisson(as_numpy(bitgen), rate); },
  };
  return &host;
}

}  // namespace envfleet::engine
