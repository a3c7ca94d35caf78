#include "bindings/env_types.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <stdexcept>

#include "bindings/bindings.h"
#include "bindings/call_scope.h"
#include "bindings/numpy_arrays.h"
#include "bindings/python_calls.h"
#include "engine/env_types.h"
#include "engine/fleet_handle.h"

namespace nb = nanobind;

namespace envfleet::bindings {

const ef_env_type& env_type_of(const std::string& env_id) {
  const ef_env_type* type = engine::find_env_type(env_id);
  if (type == nullptr) throw nb::key_error(env_id.c_str());
  return *type;
}

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

namespace {

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

nb::list params_of(const std::string& id) {
  const ef_env_type& type = env_type_of(id);
  constexpr const char* kinds[] = {"integer", "real", "flag", "text", "reals"};
  nb::list result;
  for (std::int32_t i = 0; i < type.num_params; ++i) {
    const ef_param& param = type.params[i];
    nb::dict described;
    described["name"] = to_text(param.name);
    described["kind"] = kinds[param.default_value.type];
    described["default"] = to_python(param.default_value);
    described["doc"] = to_text(param.doc);
    result.append(described);
  }
  return result;
}

nb::dict array_to_python(const ef_array& array) {
  constexpr const char* kinds[] = {"box", "discrete", "multi_discrete", "multi_binary"};
  nb::dict result;
  nb::list shape, low, high, nvec;
  std::int64_t size = 1;
  for (std::int32_t axis = 0; axis < array.ndim; ++axis) {
    shape.append(array.shape[axis]);
    size *= array.shape[axis];
  }
  for (std::int64_t i = 0; i < array.num_bounds; ++i) {
    low.append(array.low[i]);
    high.append(array.high[i]);
  }
  if (array.kind == EF_MULTI_DISCRETE) {
    for (std::int64_t i = 0; i < size; ++i) nvec.append(array.nvec[i]);
  }
  result["name"] = to_text(array.name);
  result["kind"] = kinds[array.kind];
  result["dtype"] = dtype_name(array.dtype);
  result["shape"] = nb::tuple(shape);
  result["low"] = low;
  result["high"] = high;
  result["start"] = array.start;
  result["count"] = array.count;
  result["nvec"] = nvec;
  result["on_step"] = (array.presence & EF_ON_STEP) != 0;
  result["on_reset"] = (array.presence & EF_ON_RESET) != 0;
  return result;
}

nb::dict describe(const std::string& id, nb::dict config) {
  const ef_env_type& type = env_type_of(id);
  const ConfigValues values(type, config);
  const auto spec = without_gil_if(engine::may_block(type), [&] { return engine::describe(type, values.data()); });
  constexpr const char* structures[] = {"single", "dict", "tuple"};
  nb::dict result;
  nb::list obs, info, reset_options;
  for (std::int32_t i = 0; i < spec->num_obs; ++i) obs.append(array_to_python(spec->obs[i]));
  for (std::int32_t i = 0; i < spec->num_info; ++i) info.append(array_to_python(spec->info[i]));
  for (std::int32_t i = 0; i < spec->num_reset_options; ++i) reset_options.append(to_text(spec->reset_options[i]));
  result["structure"] = structures[spec->structure];
  result["obs"] = obs;
  result["action"] = array_to_python(spec->action);
  result["info"] = info;
  result["reset_options"] = nb::tuple(reset_options);
  result["max_episode_steps"] = spec->max_episode_steps;
  result["reward_threshold"] =
      std::isnan(spec->reward_threshold) ? nb::none() : nb::object(nb::float_(spec->reward_threshold));
  result["has_state"] = spec->has_state != 0;
  result["has_render"] = spec->has_render != 0;
  return result;
}

std::vector<std::string> load_plugin(nb::handle path, bool may_block) {
  PyObject* encoded = nullptr;  // a path is bytes, which need not be UTF-8
  if (PyUnicode_FSConverter(path.ptr(), static_cast<void*>(&encoded)) == 0) throw nb::python_error();
  const auto held = nb::steal<nb::bytes>(encoded);
  try {
    return engine::load_plugin(held.c_str(), may_block);
  } catch (const std::runtime_error& error) {
    set_error(PyExc_RuntimeError, error.what());
    throw nb::python_error();
  }
}

}  // namespace

void bind_env_types(nb::module_& module) {
  module.def("list_env_types", &engine::list_env_types);
  module.def("built_in_ids", &engine::built_in_ids);
  module.def("load_plugin", &load_plugin, nb::arg("path"), nb::arg("may_block") = true);
  module.def("withdraw_types", &engine::withdraw_types);
  module.def("params_of", &params_of);
  module.def("describe", &describe);
}

}  // namespace envfleet::bindings
