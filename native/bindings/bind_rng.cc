// Rng for tests: the SDK's generator, to be held against numpy's.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "envfleet/rng.h"
#include "numpy_host.h"

namespace nb = nanobind;

namespace envfleet::bindings {

void bind_rng(nb::module_& module) {
  nb::class_<Rng>(module, "Rng")
      .def("__init__",
           [](Rng* self, const std::vector<std::uint32_t>& words) {
             if (words.size() != 4) throw nb::value_error("Rng expected the seed as four 32-bit words");
             new (self) Rng();
             self->set_host(engine::numpy_host());
             self->seed(words.data());
           })
      .def("random", &Rng::random)
      .def("uniform", &Rng::uniform)
      .def("integers", &Rng::integers)
      .def("normal", [](Rng& self) { return self.normal(); })
      .def("normal", [](Rng& self, double mean, double scale) { return self.normal(mean, scale); })
      .def("exponential", &Rng::exponential, nb::arg("scale") = 1.0)
      .def("gamma", &Rng::gamma, nb::arg("shape"), nb::arg("scale") = 1.0)
      .def("beta", &Rng::beta)
      .def("poisson", &Rng::poisson);
}

}  // namespace envfleet::bindings
