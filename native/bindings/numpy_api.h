// numpy's C interface, included the same way by every binding file.
//
// Plain numpy calls and not nanobind's ndarray: making a batch's arrays is most of what
// step() costs in Python, and this takes a fifth of the time.
#pragma once

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL ENVFLEET_ARRAY_API
#ifndef ENVFLEET_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <Python.h>
#include <numpy/arrayobject.h>

#include <cstdint>

#include "envfleet/abi.h"

namespace envfleet::bindings {

inline int numpy_type(std::int32_t dtype) {
  constexpr int types[] = {NPY_BOOL,  NPY_UINT8,  NPY_INT8,  NPY_UINT16,  NPY_INT16,  NPY_UINT32,
                           NPY_INT32, NPY_UINT64, NPY_INT64, NPY_FLOAT32, NPY_FLOAT64};
  return types[dtype];
}

inline const char* dtype_name(std::int32_t dtype) {
  constexpr const char* names[] = {"bool",  "uint8",  "int8",  "uint16",  "int16",  "uint32",
                                   "int32", "uint64", "int64", "float32", "float64"};
  return names[dtype];
}

// -1: a type that no column has.
inline std::int32_t dtype_of_array(PyArrayObject* array) {
  const int type = PyArray_TYPE(array);
  // By kind and size, since a 64-bit integer is long or long long.
  const int size = static_cast<int>(PyArray_ITEMSIZE(array));
  if (PyTypeNum_ISBOOL(type)) return EF_BOOL;
  if (PyTypeNum_ISSIGNED(type)) return size == 8 ? EF_INT64 : size == 4 ? EF_INT32 : size == 2 ? EF_INT16 : EF_INT8;
  if (PyTypeNum_ISUNSIGNED(type)) return size == 8 ? EF_UINT64 : size == 4 ? EF_UINT32 : size == 2 ? EF_UINT16 : EF_UINT8;
  if (type == NPY_FLOAT32) return EF_FLOAT32;
  if (type == NPY_FLOAT64) return EF_FLOAT64;
  return -1;
}

// An ndarray that can be read in place: contiguous, aligned, in the machine's byte order.
inline PyArrayObject* as_plain_array(PyObject* object) {
  if (!PyArray_Check(object)) return nullptr;
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  return PyArray_ISCARRAY_RO(array) ? array : nullptr;
}

}  // namespace envfleet::bindings
