#include "bindings/fields_access.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "bindings/call_scope.h"
#include "bindings/numpy_arrays.h"
#include "bindings/python_calls.h"
#include "engine/env_types.h"
#include "envfleet/spec.h"

namespace nb = nanobind;

namespace envfleet::bindings {

namespace {

[[noreturn]] void raise_out_of_range(int type, const nb::object& given) {
  const nb::object wanted = nb::steal(reinterpret_cast<PyObject*>(PyArray_DescrFromType(type)));
  PyErr_Format(PyExc_ValueError, "expected values in the range of %S, got %S", wanted.ptr(), given.ptr());
  throw nb::python_error();
}

// Whether every finite number is also finite as a float32. Checked before the cast, for which numpy would warn.
bool all_fit_float32(const nb::object& given) {
  const nb::object wide = checked(PyArray_FROMANY(given.ptr(), NPY_DOUBLE, 0, 1, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST));
  const auto* numbers = static_cast<const double*>(PyArray_DATA(as_array(wide)));
  return std::all_of(numbers, numbers + PyArray_SIZE(as_array(wide)),
                     [](double number) { return !std::isfinite(number) || std::isfinite(static_cast<float>(number)); });
}

bool all_equal(const nb::object& given, const nb::object& converted) {
  const nb::object equal = checked(PyObject_RichCompare(given.ptr(), converted.ptr(), Py_EQ));
  return PyObject_IsTrue(nb::object(nb::module_::import_("numpy").attr("all")(equal)).ptr()) == 1;
}

// An array of that type. Raises ValueError unless the kind is preserved (1.9 is not an integer) and every number fits.
nb::object convert(nb::handle value, int type) {
  const nb::object given = checked(PyArray_FROMANY(value.ptr(), NPY_NOTYPE, 0, 1, NPY_ARRAY_CARRAY_RO));
  PyArray_Descr* own = PyArray_DESCR(as_array(given));
  const nb::object wanted = nb::steal(reinterpret_cast<PyObject*>(PyArray_DescrFromType(type)));
  auto* descriptor = reinterpret_cast<PyArray_Descr*>(wanted.ptr());
  // Signed and unsigned integers count as one kind: all_equal() finds those that do not fit.
  const bool are_integers = PyTypeNum_ISINTEGER(own->type_num) && PyTypeNum_ISINTEGER(type);
  if (!are_integers && PyArray_CanCastTypeTo(own, descriptor, NPY_SAME_KIND_CASTING) == 0) {
    PyErr_Format(PyExc_ValueError, "expected values of dtype %S, got %S", wanted.ptr(), own);
    throw nb::python_error();
  }
  if (type == NPY_FLOAT && !all_fit_float32(given)) raise_out_of_range(type, given);
  Py_INCREF(descriptor);  // taken over by the call
  nb::object converted =
      checked(PyArray_FromAny(given.ptr(), descriptor, 0, 1, NPY_ARRAY_CARRAY | NPY_ARRAY_FORCECAST, nullptr));
  if (are_integers && !all_equal(given, converted)) raise_out_of_range(type, given);
  return converted;
}

void call_fields_changed(const engine::FleetHandle& fleet, std::int32_t env_id) {
  const ef_env_type& type = fleet.type();
  ef_error error{};
  const auto call = [&] { return type.fields_changed(fleet.raw(), env_id, &error); };
  if (without_gil_if(engine::may_block(type), call) != 0) {
    throw engine::FleetError(std::string("fields_changed() threw: ") + error.message);
  }
}

// Restores the fields of one name. Returns false if the env threw, or has other fields by now.
bool restore(const engine::FleetHandle& fleet, std::int32_t env_id, const std::string& name,
             const std::vector<std::string>& before) {
  std::size_t num_restored = 0;
  bool fits = true;
  try {
    fleet.visit_fields(env_id, [&](const char* field, std::int32_t dtype, std::int64_t count, void* data) {
      if (name != field || num_restored == before.size()) return;
      const std::string& bytes = before[num_restored++];
      fits &= static_cast<std::int64_t>(bytes.size()) == size_of(dtype) * (count < 0 ? 1 : count);
      if (fits) std::memcpy(data, bytes.data(), bytes.size());
    });
    call_fields_changed(fleet, env_id);
  } catch (const engine::FleetError&) {
    return false;
  }
  return fits && num_restored == before.size();
}

}  // namespace

nb::dict read_fields(const engine::FleetHandle& fleet, std::int32_t env_id) {
  nb::dict fields;
  fleet.visit_fields(env_id, [&](const char* name, std::int32_t dtype, std::int64_t count, void* data) {
    npy_intp shape[1] = {count < 0 ? 1 : count};
    nb::object copy = checked(PyArray_SimpleNew(count < 0 ? 0 : 1, shape, numpy_type(dtype)));
    const auto num_bytes = static_cast<std::size_t>(PyArray_NBYTES(as_array(copy)));
    if (num_bytes != 0) std::memcpy(PyArray_DATA(as_array(copy)), data, num_bytes);
    // A scalar is shown as the Python number that Gymnasium's attribute would be.
    fields[to_text(name)] = count < 0 ? copy.attr("item")() : copy;
  });
  return fields;
}

bool write_field(engine::Engine& engine, std::int32_t env_id, const std::string& name, nb::handle value) {
  const engine::FleetHandle& fleet = engine.fleet();
  std::vector<std::string> before;  // of each field of that name
  try {
    fleet.visit_fields(env_id, [&](const char* field, std::int32_t dtype, std::int64_t count, void* data) {
      if (name != field) return;
      const nb::object converted = convert(value, numpy_type(dtype));
      const std::int64_t expected = count < 0 ? 1 : count;
      const std::int64_t got = PyArray_SIZE(as_array(converted));
      if (got != expected) {
        throw nb::value_error(("expected " + std::to_string(expected) + " values, got " + std::to_string(got)).c_str());
      }
      const auto num_bytes = static_cast<std::size_t>(PyArray_NBYTES(as_array(converted)));
      before.emplace_back(static_cast<const char*>(data), num_bytes);
      if (num_bytes != 0) std::memcpy(data, PyArray_DATA(as_array(converted)), num_bytes);
    });
    if (before.empty()) return false;
    call_fields_changed(fleet, env_id);
  } catch (const engine::FleetError& error) {
    if (before.empty() || restore(fleet, env_id, name, before)) throw;
    engine.mark_broken(env_id);
    throw engine::FleetError(std::string(error.what()) + "; it threw for the old value too, and must be reset");
  }
  return true;
}

}  // namespace envfleet::bindings
