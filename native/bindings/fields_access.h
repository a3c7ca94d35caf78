// An env's fields as Python values: what get_attr and set_attr show.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "engine.h"

namespace envfleet::bindings {

nanobind::dict read_fields(const engine::FleetHandle& fleet, std::int32_t env_id);

// False: no field of that name. Throws a Python ValueError when the value does not fit, and FleetError for what the
// env throws: the field has its old value then. An env that throws for the old value too is marked as broken.
bool write_field(engine::Engine& engine, std::int32_t env_id, const std::string& name, nanobind::handle value);

}  // namespace envfleet::bindings
