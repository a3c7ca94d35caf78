// Python values of config parameters as the ABI's ef_value, and back.
#pragma once

#include <nanobind/nanobind.h>

#include <deque>
#include <string>
#include <vector>

#include "envfleet/abi.h"

namespace envfleet::bindings {

// Owns what the ef_values point into.
class ConfigValues {
 public:
  // values: a mapping that holds every parameter of the type. The Python layer has
  // checked their types.
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

nanobind::object to_python(const ef_value& value);

}  // namespace envfleet::bindings
