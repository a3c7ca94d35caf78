// Env types in Python: the values of their parameters, converted to the ABI's ef_value and back.
//
// Thread safety: used with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <deque>
#include <string>
#include <vector>

#include "envfleet/abi.h"

namespace envfleet::bindings {

// The type of an id; raises KeyError if there is none.
const ef_env_type& env_type_of(const std::string& env_id);

// The values of one env's parameters. Owns what the ef_values point to.
class ConfigValues {
 public:
  // values: a mapping that holds every parameter of the type. The Python layer has checked their types.
  ConfigValues(const ef_env_type& type, nanobind::dict values);
  // A copy's values would point into the original's texts and lists.
  ConfigValues(const ConfigValues&) = delete;
  ConfigValues& operator=(const ConfigValues&) = delete;
  const ef_value* data() const { return values_.data(); }

 private:
  std::vector<ef_value> values_;
  std::deque<std::string> texts_;
  std::deque<std::vector<double>> reals_;
};

}  // namespace envfleet::bindings
