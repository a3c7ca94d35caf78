// Turns an env struct into the table of C functions that the engine calls, and lists the tables of this library.
//
// Thread safety: the tables are made before main() and never change.
// Invariant: no exception leaves a function of a table. A table is never destroyed, since a thread that is stuck in an env
// outlives main().
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "envfleet/abi.h"
#include "envfleet/exceptions.h"
#include "envfleet/stepping.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

namespace detail {

template <class Env>
Fleet<Env>& fleet_of(void* fleet) {
  return *static_cast<Fleet<Env>*>(fleet);
}

// The C struct that the engine sees, and the Spec that it points into.
struct HeldSpec : ef_spec {
  Spec spec;
};

template <class Env>
const ef_env_type* make_type(const char* id, const char* doc = "") {
  static_assert(std::is_nothrow_destructible_v<Env>, "an env's destructor must not throw: nothing could report it");
  // One struct may serve several ids. Never destroyed: a thread that is stuck in an env outlives main().
  static auto& types = *new std::deque<ef_env_type>;
  ef_env_type& type = types.emplace_back();
  type.id = id;
  type.doc = doc;
  const MadeParams& params = made_params<Env>();
  type.num_params = static_cast<std::int32_t>(params.values.size());
  type.params = params.values.data();
  set_entry(type.describe, [](const ef_value* config, ef_error*) -> const ef_spec* {
    auto held = std::make_unique<HeldSpec>();
    static_cast<ef_spec&>(*held) = *finish_spec<Env>(held->spec, config);
    return held.release();
  });
  set_entry(type.release_spec, [](const ef_spec* spec) noexcept { delete static_cast<const HeldSpec*>(spec); });
  set_entry(type.create, [](const ef_fleet_options* options, ef_error*) -> void* {
    const ef_host& host = *options->host;
    const std::string mismatch = abi_mismatch(ENVFLEET_ABI_VERSION, ENVFLEET_ABI_LAYOUT, host.abi_version, host.layout);
    if (!mismatch.empty()) throw std::runtime_error(mismatch);
    return new Fleet<Env>(*options);
  });
  set_entry(type.destroy, [](void* fleet) noexcept { delete static_cast<Fleet<Env>*>(fleet); });
  set_entry(type.seed, [](void* fleet, std::int32_t env_id, const std::uint32_t words[4]) noexcept {
    fleet_of<Env>(fleet).seed(env_id, words);
  });
  set_entry(type.rebuild, [](void* fleet, std::int32_t env_id, ef_error*) { fleet_of<Env>(fleet).rebuild(env_id); });
  set_entry(type.reset_range, [](void* fleet, const ef_rows* rows, std::int64_t begin, std::int64_t end) noexcept {
    fleet_of<Env>(fleet).reset_range(*rows, begin, end);
  });
  set_entry(type.step_range, [](void* fleet, const ef_rows* rows, std::int64_t begin, std::int64_t end) noexcept {
    fleet_of<Env>(fleet).step_range(*rows, begin, end);
  });
  set_entry(type.observe_range, [](void* fleet, const ef_rows* rows, std::int64_t begin, std::int64_t end) noexcept {
    fleet_of<Env>(fleet).observe_range(*rows, begin, end);
  });
  set_entry(type.get_state, [](void* fleet, std::int32_t env_id, ef_bytes_sink sink, void* context, ef_error*) {
    StateWriter writer;
    fleet_of<Env>(fleet).get_state(env_id, writer);
    sink(context, writer.bytes().data(), static_cast<std::int64_t>(writer.bytes().size()));
  });
  set_entry(type.set_state, [](void* fleet, std::int32_t env_id, const void* data, std::int64_t size, ef_error*) {
    StateReader reader(data, static_cast<std::size_t>(size));
    fleet_of<Env>(fleet).set_state(env_id, reader);
  });
  set_entry(type.render, [](void* fleet, std::int32_t env_id, ef_frame_sink sink, void* context, ef_error*) {
    Frame frame;
    fleet_of<Env>(fleet).render(env_id, frame);
    check_frame(frame);
    sink(context, frame.height, frame.width, frame.rgb.data());
  });
  set_entry(type.visit_fields, [](void* fleet, std::int32_t env_id, ef_field_visitor visit, void* context, ef_error*) {
    fleet_of<Env>(fleet).visit_fields(env_id, visit, context);
  });
  set_entry(type.fields_changed,
            [](void* fleet, std::int32_t env_id, ef_error*) { fleet_of<Env>(fleet).fields_changed(env_id); });
  return &type;
}

// The env types of this library.
inline std::vector<const ef_env_type*>& local_types() {
  static std::vector<const ef_env_type*> types;
  return types;
}

inline const ef_plugin* local_plugin() noexcept {
  static const ef_plugin plugin{ENVFLEET_ABI_VERSION, static_cast<std::uint32_t>(local_types().size()), ENVFLEET_ABI_LAYOUT,
                                local_types().data()};
  return &plugin;
}

}  // namespace detail

}  // namespace envfleet

#pragma GCC visibility pop
