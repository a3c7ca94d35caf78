// What each bind_*.cc adds to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace envfleet::bindings {

void borrow_numpy_loops();
void bind_env_types(nanobind::module_& module);
void bind_rng(nanobind::module_& module);
void bind_call_guard(nanobind::module_& module);
void bind_pool(nanobind::module_& module);
void bind_board(nanobind::module_& module);
void bind_env_loop(nanobind::module_& module);
void bind_kernels(nanobind::module_& module);
void bind_cuda(nanobind::module_& module);
void bind_dialects(nanobind::module_& module);

}  // namespace envfleet::bindings
