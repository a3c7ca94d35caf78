#include "config_values.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python_calls.h"

namespace nb = nanobind;

namespace envfleet::bindings {

ConfigValues::ConfigValues(const ef_env_type& type, nb::dict given) {
  for (std::int32_t i = 0; i < type.num_params; ++i) {
    ef_value value = type.params[i].default_value;
    nb::object object = given[type.params[i].name];
    switch (value.type) {
      case EF_INTEGER:
        value.integer = nb::cast<std::int64_t>(object);
        break;
      case EF_FLAG:
        value.integer = nb::cast<bool>(object) ? 1 : 0;
        break;
      case EF_REAL:
        value.real = nb::cast<double>(object);
        break;
      case EF_TEXT:
        value.text = texts_.emplace_back(nb::cast<std::string>(object)).c_str();
        break;
      case EF_REALS: {
        const auto& reals = reals_.emplace_back(nb::cast<std::vector<double>>(object));
        value.reals = reals.data();
        value.num_reals = static_cast<std::int64_t>(reals.size());
        break;
      }
      default:
        throw nb::value_error("a parameter of unknown type");
    }
    values_.push_back(value);
  }
}

nb::object to_python(const ef_value& value) {
  switch (value.type) {
    case EF_INTEGER:
      return nb::cast(value.integer);
    case EF_FLAG:
      return nb::cast(value.integer != 0);
    case EF_REAL:
      return nb::cast(value.real);
    case EF_TEXT:
      return to_text(value.text);
    default:
      return nb::cast(std::vector<double>(value.reals, value.reals + value.num_reals));
  }
}

}  // namespace envfleet::bindings
