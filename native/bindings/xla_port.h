// XlaPort: a pool as the handlers of XLA programs (native/xla/handlers.cc) reach it.
//
// A program names its pool by a token. The registry holds the ports weakly: the Python object owns its port, and a handler
// shares the ownership for the time of one call. So a pool that is garbage-collected while a program runs ends the program
// with an error.
//
// Native pools are stepped without the GIL. Whatever is not plainly right there (other input, an env that raised, a closed
// pool), and every call of other pools, goes to the methods step(), send() and recv() of `calls`, a Python object: it
// converts, explains and raises.
//
// Thread safety: the functions of the table may be called from any thread, without the GIL. The pool itself lets one
// caller in at a time.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "bindings/native_pool.h"
#include "cuda/driver.h"
#include "engine/batch_buffer.h"
#include "xla/pool_functions.h"

namespace envfleet::xla {

// The array in which Python workers write their rows, page-locked.
struct LockedArray {
  PyObject* array = nullptr;
  std::unique_ptr<cuda::PageLock> lock = std::make_unique<cuda::PageLock>();
  ~LockedArray();
};

struct Port {
  std::int64_t token = 0;
  bindings::NativePool* native = nullptr;  // null: only `calls` can step this pool
  std::int64_t row_elements = 0;           // of the native pool's action
  std::vector<std::int64_t> columns;       // of the native pool's batches (BatchLayout)
  std::vector<std::int64_t> num_elements;  // per row, by column
  std::vector<std::int32_t> all_ids;       // 0, 1, 2 ...: the env_id of whole batches
  nanobind::object native_object, calls;   // used with the GIL held
  std::mutex locks_mutex;
  std::map<PyObject*, std::shared_ptr<LockedArray>> locks;
  ~Port();
};

// Owns a native buffer, or a list of numpy arrays.
struct Batch {
  std::vector<Array> columns;
  engine::BatchBuffer* buffer = nullptr;
  PyObject* arrays = nullptr;
  std::vector<PyObject*> owners;  // of the memory of each array, if later batches use it too; else null
  std::vector<std::shared_ptr<LockedArray>> locks;
  ~Batch();
};

}  // namespace envfleet::xla
