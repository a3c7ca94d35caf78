// What each file of the bindings adds to the module.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "engine/counters.h"

namespace envfleet::bindings {

void load_numpy_loops();
void bind_env_types(nanobind::module_& module);
void bind_random(nanobind::module_& module);
void bind_call_guard(nanobind::module_& module);
void bind_native_pool(nanobind::module_& module);
void bind_shared_memory(nanobind::module_& module);
void bind_python_pool(nanobind::module_& module);
void bind_step_loop(nanobind::module_& module);
void bind_kernels(nanobind::module_& module);
void bind_array_memory(nanobind::module_& module);
void bind_cuda(nanobind::module_& module);
void bind_xla_port(nanobind::module_& module);
void bind_api_columns(nanobind::module_& module);

// The fields of statistics.EnvStats, by name.
nanobind::dict to_python(const engine::EnvStatistics& statistics);

// byte_of(env_id) for each env.
template <class ByteOf>
nanobind::bytes bytes_of_envs(std::int32_t num_envs, ByteOf&& byte_of) {
  std::vector<std::uint8_t> all(num_envs);
  for (std::int32_t env_id = 0; env_id < num_envs; ++env_id) all[env_id] = byte_of(env_id);
  return nanobind::bytes(all.data(), all.size());
}

}  // namespace envfleet::bindings
