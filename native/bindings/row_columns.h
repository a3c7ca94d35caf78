// RowColumns: the columns of a board as fresh numpy arrays, for a batch of rows.
//
// Lives and dies with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "array_memory.h"
#include "numpy_api.h"

namespace envfleet::bindings {

class RowColumn {
 public:
  // array: row i of env i, over the board's memory.
  explicit RowColumn(nanobind::object array) : array_(std::move(array)) {
    auto* raw = reinterpret_cast<PyArrayObject*>(array_.ptr());
    data_ = PyArray_BYTES(raw);
    num_envs_ = PyArray_DIM(raw, 0);
    row_bytes_ = num_envs_ > 0 ? static_cast<std::int64_t>(PyArray_NBYTES(raw)) / num_envs_ : 0;
    shape_.assign(PyArray_DIMS(raw), PyArray_DIMS(raw) + PyArray_NDIM(raw));
  }

  // The rows of env_ids (null: all envs) in that order; a new array, or null with an error set.
  PyObject* gather(const std::int32_t* env_ids, std::int64_t count) const {
    PyObject* made = empty(count, false);
    if (made == nullptr) return nullptr;
    char* target = PyArray_BYTES(reinterpret_cast<PyArrayObject*>(made));
    if (env_ids == nullptr) {
      std::memcpy(target, data_, static_cast<std::size_t>(row_bytes_ * count));
      return made;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      std::memcpy(target + i * row_bytes_, data_ + env_ids[i] * row_bytes_, static_cast<std::size_t>(row_bytes_));
    }
    return made;
  }

  // The same, but only rows for which wanted(env_id); zeros elsewhere.
  template <class Wanted>
  PyObject* gather_some(const std::int32_t* env_ids, std::int64_t count, Wanted&& wanted) const {
    PyObject* made = empty(count, true);
    if (made == nullptr) return nullptr;
    char* target = PyArray_BYTES(reinterpret_cast<PyArrayObject*>(made));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t env_id = env_ids != nullptr ? env_ids[i] : static_cast<std::int32_t>(i);
      if (wanted(env_id)) std::memcpy(target + i * row_bytes_, row(env_id), static_cast<std::size_t>(row_bytes_));
    }
    return made;
  }

  // The board's own memory, which the next batch overwrites.
  PyObject* view() const { return Py_NewRef(array_.ptr()); }
  char* row(std::int32_t env_id) const { return data_ + env_id * row_bytes_; }
  std::int64_t row_bytes() const { return row_bytes_; }
  void clear_row(std::int32_t env_id) const { std::memset(row(env_id), 0, static_cast<std::size_t>(row_bytes_)); }

 private:
  PyObject* empty(std::int64_t count, bool zeroed) const {
    PyArray_Descr* descriptor = PyArray_DESCR(reinterpret_cast<PyArrayObject*>(array_.ptr()));
    std::vector<npy_intp> shape = shape_;
    shape[0] = count;
    Py_INCREF(descriptor);  // both take it over
    const int ndim = static_cast<int>(shape.size());
    return zeroed ? PyArray_Zeros(ndim, shape.data(), descriptor, 0)
                  : memory_->make(descriptor, ndim, shape.data(), row_bytes_ * count);
  }

  nanobind::object array_;
  std::shared_ptr<ArrayMemory> memory_ = std::make_shared<ArrayMemory>();
  char* data_;
  std::int64_t num_envs_, row_bytes_;
  std::vector<npy_intp> shape_;
};

}  // namespace envfleet::bindings
