// InfoSchema: which keys of an env's info dict are stored as raw values in shared memory, and where.
//
// The caller learns keys as they appear and publishes them. Both sides hold the same list, which only grows: entry k is bit
// k of a row's mask, at its offset in the env's info bytes. Values that are not in it, or have another type, are sent
// through the side channel.
//
// Thread safety: each side has its own object, used with the GIL held.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "bindings/numpy_arrays.h"

namespace envfleet::bindings {

class InfoSchema {
 public:
  InfoSchema() = default;
  ~InfoSchema() { clear(); }
  InfoSchema(const InfoSchema&) = delete;
  InfoSchema& operator=(const InfoSchema&) = delete;

  // entries: a list of (key, type of the value, dtype, shape, offset). Returns false with a Python error set.
  bool load(PyObject* entries);
  std::size_t size() const { return entries_.size(); }

  // Writes what fits and puts the rest into *extras (created when needed). Returns false with a Python error set.
  bool pack(PyObject* info, char* target, std::uint64_t* mask, PyObject** extras) const;

  // The columns of a batch as a dict: arrays by key, and a mask under _key if not every row has a value. row_at(row) has
  // the row's bytes and mask. Returns null with a Python error set on failure.
  template <class RowAt>
  PyObject* unpack(std::int64_t num_rows, RowAt&& row_at) const;

 private:
  struct Entry {
    PyObject* key;
    PyObject* mask_key;
    PyTypeObject* type;  // of the value: float, a numpy scalar's, numpy.ndarray ...
    PyArray_Descr* descriptor;
    std::vector<npy_intp> shape;
    std::int64_t offset, bytes;
    enum { kFloat, kInt, kBool, kScalar, kArray } kind;
  };
  void clear();
  const Entry* find(PyObject* key, std::size_t guess) const;
  static bool write(const Entry& entry, PyObject* value, char* target);

  std::vector<Entry> entries_;
};

template <class RowAt>
PyObject* InfoSchema::unpack(std::int64_t num_rows, RowAt&& row_at) const {
  PyObject* info = PyDict_New();
  if (info == nullptr) return nullptr;
  std::uint64_t any = 0;
  for (std::int64_t row = 0; row < num_rows; ++row) any |= row_at(row).mask;
  for (std::size_t k = 0; k < entries_.size() && any >> k != 0; ++k) {
    const std::uint64_t bit = std::uint64_t{1} << k;
    if ((any & bit) == 0) continue;
    const Entry& entry = entries_[k];
    std::vector<npy_intp> shape{static_cast<npy_intp>(num_rows)};
    shape.insert(shape.end(), entry.shape.begin(), entry.shape.end());
    Py_INCREF(entry.descriptor);  // Zeros takes it over
    PyObject* column = PyArray_Zeros(static_cast<int>(shape.size()), shape.data(), entry.descriptor, 0);
    npy_intp rows = num_rows;
    PyObject* mask = column == nullptr ? nullptr : PyArray_ZEROS(1, &rows, NPY_BOOL, 0);
    if (mask == nullptr) {
      Py_XDECREF(column);
      Py_DECREF(info);
      return nullptr;
    }
    char* data = PyArray_BYTES(reinterpret_cast<PyArrayObject*>(column));
    char* flags = PyArray_BYTES(reinterpret_cast<PyArrayObject*>(mask));
    std::int64_t count = 0;
    for (std::int64_t row = 0; row < num_rows; ++row) {
      const auto own = row_at(row);
      if ((own.mask & bit) == 0) continue;
      std::memcpy(data + row * entry.bytes, own.bytes + entry.offset, static_cast<std::size_t>(entry.bytes));
      flags[row] = 1;
      ++count;
    }
    bool is_stored = PyDict_SetItem(info, entry.key, column) == 0;
    if (count < num_rows) is_stored = is_stored && PyDict_SetItem(info, entry.mask_key, mask) == 0;
    Py_DECREF(column);
    Py_DECREF(mask);
    if (!is_stored) {
      Py_DECREF(info);
      return nullptr;
    }
  }
  return info;
}

}  // namespace envfleet::bindings
