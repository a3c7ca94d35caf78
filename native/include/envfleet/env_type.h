// An env struct as the table of C functions that the engine calls, and the list of such tables.
//
// Thread safety: the tables are made before main() and never change.
// Invariant: no exception leaves a function of a table; a table is never destroyed, since a thread
// that is stuck in an env outlives main().
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "envfleet/abi.h"
#include "envfleet/fleet.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

namespace detail {

template <class Env>
Fleet<Env>& fleet_of(void* fleet) {
  return *static_cast<Fleet<Env>*>(fleet);
}

// The C view that the engine sees, and the Spec that it points into.
struct HeldSpec : ef_spec {
  Spec spec;
};

template <class Env>
const ef_env_type* make_type(const char* id, const char* doc = "") {
  // One struct may serve several ids. Never destroyed: a thread that is stuck in an env outlives main().
  static auto& types = *new std::deque<ef_env_type>;
  ef_env_type& type = types.emplace_back();
  type.abi_version = ENVFLEET_ABI_VERSION;
  type.struct_size = sizeof(ef_env_type);
  type.id = id;
  type.doc = doc;
  type.num_params = static_cast<std::int32_t>(params_of<Env>().size());
  type.params = params_of<Env>().data();
  type.describe = [](const ef_value* config, ef_error* error) -> const ef_spec* {
    const ef_spec* result = nullptr;
    guarded(error, [&] {
      auto held = std::make_unique<HeldSpec>();
      static_cast<ef_spec&>(*held) = *finish_spec<Env>(held->spec, config);
      result = held.release();
    });
    return result;
  };
  type.release_spec = [](const ef_spec* spec) { delete static_cast<const HeldSpec*>(spec); };
  type.create = [](const ef_fleet_options* options, ef_error* error) -> void* {
    void* result = nullptr;
    guarded(error, [&] { result = new Fleet<Env>(*options); });
    return result;
  };
  type.destroy = [](void* fleet) { delete static_cast<Fleet<Env>*>(fleet); };
  type.seed = [](void* fleet, std::int32_t env_id, const std::uint32_t words[4]) {
    fleet_of<Env>(fleet).seed(env_id, words);
  };
  type.rebuild = [](void* fleet, std::int32_t env_id, ef_error* error) -> std::int32_t {
    return guarded(error, [&] { fleet_of<Env>(fleet).rebuild(env_id); }) ? 0 : 1;
  };
  type.reset_range = [](void* fleet, const ef_rows* rows, std::int64_t begin, std::int64_t end) {
    fleet_of<Env>(fleet).reset_range(*rows, begin, end);
  };
  type.step_range = [](void* fleet, const ef_rows* rows, std::int64_t begin, std::int64_t end) {
    fleet_of<Env>(fleet).step_range(*rows, begin, end);
  };
  type.observe_range = [](void* fleet, const ef_rows* rows, std::int64_t begin, std::int64_t end) {
    fleet_of<Env>(fleet).observe_range(*rows, begin, end);
  };
  type.get_state = [](void* fleet, std::int32_t env_id, ef_bytes_sink sink, void* context, ef_error* error) -> std::int32_t {
    return guarded(error,
                   [&] {
                     StateWriter writer;
                     fleet_of<Env>(fleet).get_state(env_id, writer);
                     sink(context, writer.bytes().data(), static_cast<std::int64_t>(writer.bytes().size()));
                   })
               ? 0
               : 1;
  };
  type.set_state = [](void* fleet, std::int32_t env_id, const void* data, std::int64_t size,
                      ef_error* error) -> std::int32_t {
    return guarded(error,
                   [&] {
                     StateReader reader(data, static_cast<std::size_t>(size));
                     fleet_of<Env>(fleet).set_state(env_id, reader);
                   })
               ? 0
               : 1;
  };
  type.render = [](void* fleet, std::int32_t env_id, ef_frame_sink sink, void* context, ef_error* error) -> std::int32_t {
    return guarded(error,
                   [&] {
                     Frame frame;
                     fleet_of<Env>(fleet).render(env_id, frame);
                     sink(context, frame.height, frame.width, frame.rgb.data());
                   })
               ? 0
               : 1;
  };
  type.visit_fields = [](void* fleet, std::int32_t env_id, ef_field_visitor visit, void* context) {
    fleet_of<Env>(fleet).visit_fields(env_id, visit, context);
  };
  return &type;
}

// The env types of this library.
inline std::vector<const ef_env_type*>& local_types() {
  static std::vector<const ef_env_type*> types;
  return types;
}

inline const ef_plugin* local_plugin() {
  static const ef_plugin plugin{ENVFLEET_ABI_VERSION, static_cast<std::uint32_t>(local_types().size()),
                                local_types().data()};
  return &plugin;
}

}  // namespace detail

}  // namespace envfleet

#pragma GCC visibility pop
