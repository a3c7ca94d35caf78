// The native module: a table of contents.
#define ENVFLEET_IMPORTS_NUMPY
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/numpy_arrays.h"
#include "engine/cores.h"
#include "engine/numa.h"

namespace nb = nanobind;

namespace envfleet::bindings {

nb::dict to_python(const engine::EnvStatistics& statistics) {
  nb::dict fields;
  fields["num_steps"] = statistics.num_steps;
  fields["num_resets"] = statistics.num_resets;
  fields["num_episodes"] = statistics.num_episodes;
  fields["return_sum"] = statistics.return_sum;
  fields["return_min"] = statistics.return_min;
  fields["return_max"] = statistics.return_max;
  fields["length_sum"] = statistics.length_sum;
  fields["length_min"] = statistics.length_min;
  fields["length_max"] = statistics.length_max;
  fields["busy_ns"] = statistics.busy_ns;
  fields["slowest_ns"] = statistics.slowest_ns;
  return fields;
}

}  // namespace envfleet::bindings

// What cmake/features.cmake found or was told to use.
static nb::tuple features() {
  nb::list names;
  if (ENVFLEET_HAS_FUTEX) names.append("futex");
  if (ENVFLEET_HAS_MEMFD) names.append("memfd");
  if (ENVFLEET_HAS_PIDFD) names.append("pidfd");
  if (ENVFLEET_HAS_PDEATHSIG) names.append("pdeathsig");
  if (ENVFLEET_HAS_AVX2) names.append("avx2");
  return nb::tuple(names);
}

NB_MODULE(_extension, module) {
  using namespace envfleet;
  if (_import_array() < 0) throw nb::python_error();
  bindings::load_numpy_loops();
  // A daemon thread that is still inside a call at exit keeps its objects alive, which is not a leak.
  nb::set_leak_warnings(false);
  module.doc() = "The C++ side of envfleet; not a public interface.";
  module.attr("abi_version") = ENVFLEET_ABI_VERSION;
  module.attr("features") = features();
  module.def("usable_cores", &engine::usable_cores);
  module.def("cores_by_node", &engine::cores_by_node, nb::arg("cores"), nb::arg("root") = "/sys/devices/system/node");
  bindings::bind_env_types(module);
  bindings::bind_random(module);
  bindings::bind_call_guard(module);
  bindings::bind_native_pool(module);
  bindings::bind_shared_memory(module);
  bindings::bind_python_pool(module);
  bindings::bind_step_loop(module);
  bindings::bind_kernels(module);
  bindings::bind_api_columns(module);
  bindings::bind_array_memory(module);
  bindings::bind_cuda(module);
  bindings::bind_xla_port(module);
}
