#include "bindings/info_schema.h"

#include <numpy/arrayscalars.h>

#include <cstring>

namespace envfleet::bindings {

void InfoSchema::clear() {
  for (Entry& entry : entries_) {
    Py_DECREF(entry.key);
    Py_DECREF(entry.mask_key);
    Py_DECREF(entry.type);
    Py_DECREF(entry.descriptor);
  }
  entries_.clear();
}

bool InfoSchema::load(PyObject* entries) {
  clear();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(entries); ++i) {
    PyObject *key, *type, *descriptor, *shape;
    long long offset;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(entries, i), "UOOO!L", &key, &type, &descriptor, &PyTuple_Type, &shape, &offset)) {
      return false;
    }
    Entry entry{};
    entry.key = Py_NewRef(key);
    PyUnicode_InternInPlace(&entry.key);
    entry.mask_key = PyUnicode_FromFormat("_%U", key);
    entry.type = reinterpret_cast<PyTypeObject*>(Py_NewRef(type));
    entry.descriptor = reinterpret_cast<PyArray_Descr*>(Py_NewRef(descriptor));
    entry.offset = offset;
    entry.bytes = PyDataType_ELSIZE(entry.descriptor);
    for (Py_ssize_t axis = 0; axis < PyTuple_GET_SIZE(shape); ++axis) {
      entry.shape.push_back(PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, axis)));
      entry.bytes *= entry.shape.back();
    }
    entry.kind = entry.type == &PyFloat_Type   ? Entry::kFloat
                 : entry.type == &PyLong_Type  ? Entry::kInt
                 : entry.type == &PyBool_Type  ? Entry::kBool
                 : entry.type == &PyArray_Type ? Entry::kArray
                                               : Entry::kScalar;
    entries_.push_back(std::move(entry));
  }
  return true;
}

const InfoSchema::Entry* InfoSchema::find(PyObject* key, std::size_t guess) const {
  // Envs usually return their keys in the same order.
  if (guess < entries_.size() && entries_[guess].key == key) return &entries_[guess];
  for (const Entry& entry : entries_) {
    if (entry.key == key) return &entry;
  }
  // Not every key is interned.
  if (!PyUnicode_Check(key)) return nullptr;
  for (const Entry& entry : entries_) {
    if (PyUnicode_Compare(entry.key, key) == 0) return &entry;
  }
  return nullptr;
}

bool InfoSchema::write(const Entry& entry, PyObject* value, char* target) {
  switch (entry.kind) {
    case Entry::kFloat: {
      if (!PyFloat_CheckExact(value) && !PyArray_IsScalar(value, Double)) return false;
      const double number = PyFloat_AS_DOUBLE(value);
      std::memcpy(target, &number, sizeof(number));
      return true;
    }
    case Entry::kInt: {
      if (PyArray_IsScalar(value, Int64)) {
        PyArray_ScalarAsCtype(value, target);
        return true;
      }
      if (!PyLong_CheckExact(value)) return false;
      int is_too_big = 0;
      const long long number = PyLong_AsLongLongAndOverflow(value, &is_too_big);
      if (is_too_big != 0) return false;
      std::memcpy(target, &number, sizeof(number));
      return true;
    }
    case Entry::kBool:
      if (!PyBool_Check(value)) return false;
      *target = value == Py_True ? 1 : 0;
      return true;
    case Entry::kScalar:
      if (Py_TYPE(value) != entry.type) return false;
      PyArray_ScalarAsCtype(value, target);
      return true;
    case Entry::kArray: {
      if (!PyArray_CheckExact(value)) return false;
      auto* array = reinterpret_cast<PyArrayObject*>(value);
      if (PyArray_DESCR(array) != entry.descriptor && !PyArray_EquivTypes(PyArray_DESCR(array), entry.descriptor))
        return false;
      if (!PyArray_IS_C_CONTIGUOUS(array) || PyArray_NDIM(array) != static_cast<int>(entry.shape.size())) return false;
      for (std::size_t axis = 0; axis < entry.shape.size(); ++axis) {
        if (PyArray_DIM(array, static_cast<int>(axis)) != entry.shape[axis]) return false;
      }
      std::memcpy(target, PyArray_DATA(array), static_cast<std::size_t>(entry.bytes));
      return true;
    }
  }
  return false;
}

bool InfoSchema::pack(PyObject* info, char* target, std::uint64_t* mask, PyObject** extras) const {
  PyObject *key, *value;
  Py_ssize_t position = 0;
  std::size_t guess = 0;
  while (PyDict_Next(info, &position, &key, &value)) {
    const Entry* entry = find(key, guess);
    if (entry != nullptr && write(*entry, value, target + entry->offset)) {
      const auto k = static_cast<std::size_t>(entry - entries_.data());
      *mask |= std::uint64_t{1} << k;
      guess = k + 1;
      continue;
    }
    if (*extras == nullptr) *extras = PyDict_New();
    if (*extras == nullptr || PyDict_SetItem(*extras, key, value) < 0) return false;
  }
  return true;
}

}  // namespace envfleet::bindings
