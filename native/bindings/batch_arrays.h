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

// The buffer that holds columns of a batch: (address, size in bytes, whether it is page-locked, [offset or -1 per array]).
// None when no array is a column. The buffer lives as long as an array does that is in it.
nanobind::object page_locked_batch(nanobind::list arrays);

}  // namespace envfleet::bindings
