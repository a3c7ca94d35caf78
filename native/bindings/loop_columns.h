// The columns of a board as a worker uses them: observations that it writes, actions that it hands out.
//
// Used with the GIL held, by one thread at a time.
#pragma once

#include <nanobind/nanobind.h>
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "numpy_api.h"

namespace envfleet::bindings {

// Row i of env i, as the array that Python made over the board; empty when it was None.
struct BoardColumn {
  nanobind::object array;  // keeps the memory
  char* data = nullptr;
  PyArray_Descr* descriptor = nullptr;
  int ndim = 0;  // of a row
  const npy_intp* shape = nullptr;
  std::int64_t row_bytes = 0;

  explicit BoardColumn(nanobind::handle given) {
    if (given.is_none()) return;
    array = nanobind::borrow(given);
    auto* raw = reinterpret_cast<PyArrayObject*>(given.ptr());
    data = PyArray_BYTES(raw);
    descriptor = PyArray_DESCR(raw);
    ndim = PyArray_NDIM(raw) - 1;
    shape = PyArray_DIMS(raw) + 1;
    row_bytes = PyDataType_ELSIZE(descriptor);
    for (int axis = 0; axis < ndim; ++axis) row_bytes *= shape[axis];
  }
  explicit operator bool() const { return array.is_valid(); }
  char* row(std::int32_t env_id) const { return data + row_bytes * env_id; }
};

// Observations that are one array.
struct ObsColumn : BoardColumn {
  using BoardColumn::BoardColumn;

  // False: it is not plainly of the space's dtype and shape; nothing is known of it then.
  bool write(std::int32_t env_id, PyObject* obs) const {
    char* target = row(env_id);
    if (!PyArray_Check(obs)) return write_integer(target, obs);
    auto* given = reinterpret_cast<PyArrayObject*>(obs);
    if (PyArray_DESCR(given) != descriptor && !PyArray_EquivTypes(PyArray_DESCR(given), descriptor)) return false;
    if (!PyArray_IS_C_CONTIGUOUS(given) || PyArray_NDIM(given) != ndim) return false;
    if (!std::equal(shape, shape + ndim, PyArray_DIMS(given))) return false;
    // An env may have written straight into its row.
    if (PyArray_DATA(given) != target) std::memcpy(target, PyArray_DATA(given), static_cast<std::size_t>(row_bytes));
    return true;
  }

 private:
  // Discrete: an int, or numpy's int64.
  bool write_integer(char* target, PyObject* obs) const {
    if (ndim != 0 || descriptor->type_num != NPY_INT64) return false;
    if (PyArray_IsScalar(obs, Int64)) {
      PyArray_ScalarAsCtype(obs, target);
      return true;
    }
    if (!PyLong_CheckExact(obs)) return false;
    int is_too_big = 0;
    const long long value = PyLong_AsLongLongAndOverflow(obs, &is_too_big);
    std::memcpy(target, &value, sizeof(value));
    return is_too_big == 0;
  }
};

// Actions that are one array, as the objects that envs are given.
struct ActionColumn : BoardColumn {
  using BoardColumn::BoardColumn;

  // A numpy scalar for shape (), else the env's own copy: it may keep what it is given. Invalid with an error set.
  nanobind::object make(std::int32_t env_id) {
    char* source = row(env_id);
    if (ndim > 0) return array_from(source);
    if (descriptor->type_num != NPY_INT64) return scalar_from(source);
    std::int64_t value;
    std::memcpy(&value, source, sizeof(value));
    if (value < 0 || value >= kMaxCached) return scalar_from(source);
    // numpy's scalars never change, so that one of each value will do.
    const auto index = static_cast<std::size_t>(value);
    if (index >= cached_.size()) cached_.resize(index + 1);
    if (!cached_[index].is_valid()) cached_[index] = scalar_from(source);
    return cached_[index];
  }

 private:
  static constexpr std::int64_t kMaxCached = 1024;

  nanobind::object scalar_from(char* source) const { return nanobind::steal(PyArray_Scalar(source, descriptor, nullptr)); }
  nanobind::object array_from(const char* source) const {
    Py_INCREF(descriptor);  // NewFromDescr takes it over
    PyObject* made = PyArray_NewFromDescr(&PyArray_Type, descriptor, ndim, shape, nullptr, nullptr, 0, nullptr);
    if (made != nullptr) {
      std::memcpy(PyArray_DATA(reinterpret_cast<PyArrayObject*>(made)), source, static_cast<std::size_t>(row_bytes));
    }
    return nanobind::steal(made);
  }

  std::vector<nanobind::object> cached_;
};

}  // namespace envfleet::bindings
