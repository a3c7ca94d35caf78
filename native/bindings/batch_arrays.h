// A batch buffer as numpy arrays that own it together.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "batch_buffer.h"
#include "numpy_api.h"

namespace envfleet::bindings {

// Makes the tuple of arrays for one layout. Holds numpy descriptors, so it lives and dies
// with the GIL held.
class BatchArrays {
 public:
  // whole_ids: the read-only array 0, 1, 2 ... that stands for env_id in a batch of all envs.
  BatchArrays(const engine::BatchLayout& layout, PyObject* whole_ids);
  ~BatchArrays();
  BatchArrays(const BatchArrays&) = delete;
  BatchArrays& operator=(const BatchArrays&) = delete;

  // A new tuple: one array a column, then `last`. Takes over the buffer and `last`, also
  // when it fails (null, with a Python error set).
  PyObject* wrap(engine::BatchBuffer* buffer, PyObject* last) const;

 private:
  struct Column {
    PyArray_Descr* descriptor;
    int ndim;
    npy_intp shape[ENVFLEET_MAX_NDIM + 1];
  };
  std::vector<Column> columns_;
  std::int64_t env_id_column_;
  PyObject* whole_ids_;
};

// The whole buffer behind a column of a batch, and whether it is page-locked: (uint8 array, bool). None for an array that
// is no column. The array shares the buffer's ownership.
nanobind::object page_locked_batch(nanobind::handle column);

}  // namespace envfleet::bindings
