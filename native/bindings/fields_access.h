// An env's fields as Python values, for get_attr and set_attr.
//
// Thread safety: used with the GIL held, inside a call of the pool.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "engine/engine.h"

namespace envfleet::bindings {

nanobind::dict read_fields(const engine::FleetHandle& fleet, std::int32_t env_id);

// Returns false if there is no field with this name. Raises ValueError if the value does not fit, and throws FleetError for
// an exception of the env; the field keeps its old value then. An env that also throws for the old value is marked as
// broken.
bool write_field(engine::Engine& engine, std::int32_t env_id, const std::string& name, nanobind::handle value);

}  // namespace envfleet::bindings
