// An env's fields as Python values: what get_attr and set_attr show.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "fleet.h"

namespace envfleet::bindings {

nanobind::dict read_fields(const engine::FleetHandle& fleet, std::int32_t env_id);

// False: no field of that name. Throws a Python ValueError when the value does not fit.
bool write_field(const engine::FleetHandle& fleet, std::int32_t env_id, const std::string& name, nanobind::handle value);

}  // namespace envfleet::bindings
