#include "fields_access.h"

#include <cstring>

#include "numpy_api.h"

namespace nb = nanobind;

namespace envfleet::bindings {

nb::dict read_fields(const engine::FleetHandle& fleet, std::int32_t env_id) {
  nb::dict fields;
  const auto visit = [](void* context, const char* name, std::int32_t dtype, std::int64_t count, void* data) {
    npy_intp shape[1] = {count < 0 ? 1 : count};
    PyObject* copy = PyArray_SimpleNew(count < 0 ? 0 : 1, shape, numpy_type(dtype));
    if (copy == nullptr) return PyErr_Clear();
    auto* array = reinterpret_cast<PyArrayObject*>(copy);
    std::memcpy(PyArray_DATA(array), data, static_cast<std::size_t>(PyArray_NBYTES(array)));
    // A scalar is shown as the Python number that Gymnasium's attribute would be.
    nb::object value = nb::steal(copy);
    (*static_cast<nb::dict*>(context))[name] = count < 0 ? value.attr("item")() : value;
  };
  fleet.type().visit_fields(fleet.raw(), env_id, visit, &fields);
  return fields;
}

namespace {

// An array of that type, when no kind is lost on the way: 1.9 is no integer.
PyObject* convert(PyObject* value, int type) {
  PyObject* given = PyArray_FROMANY(value, NPY_NOTYPE, 0, 1, NPY_ARRAY_CARRAY_RO);
  if (given == nullptr) return nullptr;
  PyArray_Descr* wanted = PyArray_DescrFromType(type);
  PyArray_Descr* own = PyArray_DESCR(reinterpret_cast<PyArrayObject*>(given));
  if (PyArray_CanCastTypeTo(own, wanted, NPY_SAME_KIND_CASTING) == 0) {
    PyErr_Format(PyExc_ValueError, "expected values of dtype %S, got %S", wanted, own);
    Py_DECREF(wanted);
    Py_DECREF(given);
    return nullptr;
  }
  PyObject* converted = PyArray_FromAny(given, wanted, 0, 1, NPY_ARRAY_CARRAY | NPY_ARRAY_FORCECAST, nullptr);
  Py_DECREF(given);
  return converted;
}

}  // namespace

bool write_field(const engine::FleetHandle& fleet, std::int32_t env_id, const std::string& name, nb::handle value) {
  struct Writing {
    const std::string& name;
    PyObject* value;
    bool found = false;
    bool failed = false;
  } writing{name, value.ptr()};
  const auto visit = [](void* context, const char* field, std::int32_t dtype, std::int64_t count, void* data) {
    auto& writing = *static_cast<Writing*>(context);
    if (writing.name != field) return;
    writing.found = true;
    PyObject* converted = convert(writing.value, numpy_type(dtype));
    if (converted == nullptr) {
      writing.failed = true;
      return;
    }
    auto* array = reinterpret_cast<PyArrayObject*>(converted);
    const std::int64_t expected = count < 0 ? 1 : count;
    if (PyArray_SIZE(array) != expected) {
      PyErr_Format(PyExc_ValueError, "field %s expected %lld values, got %lld", field, static_cast<long long>(expected),
                   static_cast<long long>(PyArray_SIZE(array)));
      writing.failed = true;
    } else {
      std::memcpy(data, PyArray_DATA(array), static_cast<std::size_t>(PyArray_NBYTES(array)));
    }
    Py_DECREF(converted);
  };
  fleet.type().visit_fields(fleet.raw(), env_id, visit, &writing);
  if (writing.failed) throw nb::python_error();
  return writing.found;
}

}  // namespace envfleet::bindings
