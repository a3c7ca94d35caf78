// Rng and RandomState for tests, which compare the SDK's generators with numpy's.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <numeric>

#include "bindings/bindings.h"
#include "engine/numpy_host.h"
#include "envfleet/random_state.h"
#include "envfleet/rng.h"

namespace nb = nanobind;

namespace envfleet::bindings {

void bind_random(nb::module_& module) {
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
  nb::class_<RandomState>(module, "RandomState")
      .def("__init__",
           [](RandomState* self, const std::vector<std::uint32_t>& words) {
             if (words.size() != 4) throw nb::value_error("RandomState expected the seed as four 32-bit words");
             new (self) RandomState();
             self->seed(words.data());
           })
      .def("seed_by_array",
           [](RandomState& self, const std::vector<std::uint32_t>& values) { self.seed(std::span(values)); })
      .def("is_fresh", &RandomState::is_fresh)
      .def("random_sample", &RandomState::random_sample)
      .def("uniform", &RandomState::uniform)
      .def("randn", &RandomState::randn)
      .def("randint", &RandomState::randint)
      .def("choice", [](RandomState& self, const std::vector<double>& probabilities) { return self.choice(probabilities); })
      .def("permutation", [](RandomState& self, std::int64_t size) {
        std::vector<std::int64_t> values(static_cast<std::size_t>(size));
        std::iota(values.begin(), values.end(), 0);
        self.shuffle(std::span(values));
        return values;
      });
}

}  // namespace envfleet::bindings
