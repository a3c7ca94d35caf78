// The native module: a table of contents.
#define ENVFLEET_IMPORTS_NUMPY
#include <nanobind/nanobind.h>

#include "bindings.h"
#include "cores.h"
#include "numpy_api.h"

namespace nb = nanobind;

NB_MODULE(_native, module) {
  if (_import_array() < 0) throw nb::python_error();
  envfleet::bindings::borrow_numpy_loops();
  // A daemon thread that still stands in a frame at exit keeps what it holds, and that is no bug.
  nb::set_leak_warnings(false);
  module.doc() = "The C++ side of envfleet; not a public interface.";
  module.attr("abi_version") = ENVFLEET_ABI_VERSION;
  module.def("usable_cores", &envfleet::engine::usable_cores);
  envfleet::bindings::bind_env_types(module);
  envfleet::bindings::bind_rng(module);
  envfleet::bindings::bind_call_guard(module);
  envfleet::bindings::bind_pool(module);
  envfleet::bindings::bind_board(module);
  envfleet::bindings::bind_env_loop(module);
  envfleet::bindings::bind_kernels(module);
  envfleet::bindings::bind_dialects(module);
  envfleet::bindings::bind_cuda(module);
}
