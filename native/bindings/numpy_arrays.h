// numpy arrays in the bindings: numpy's C interface, arrays that a caller passed in, and arrays that are returned.
//
// Every binding file includes numpy through this header. Plain numpy calls instead of nanobind's ndarray: making a
// batch's arrays is most of what step() costs in Python, and this takes a fifth of the time.
//
// Thread safety: everything here is used with the GIL held, except that the memory of an ArrayMemory may be released on
// any thread.
#pragma once

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL ENVFLEET_ARRAY_API
#ifndef ENVFLEET_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <Python.h>
#include <nanobind/nanobind.h>
#include <numpy/arrayobject.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "bindings/python_calls.h"
#include "cuda/driver.h"
#include "envfleet/abi.h"

namespace envfleet::bindings {

inline PyArrayObject* as_array(nanobind::handle array) { return reinterpret_cast<PyArrayObject*>(array.ptr()); }

// --- dtypes ------------------------------------------------------------------------------------------------------------

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

// The ef_dtype of an array; -1 for a type that no column has.
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

// --- arrays that a caller passed in ------------------------------------------------------------------------------------
//
// Read in place. Whatever is not plainly right is refused; the Python layer converts it or explains what is wrong.

// The array, if it is contiguous, aligned and in the machine's byte order; otherwise null.
inline PyArrayObject* as_plain_array(PyObject* object) {
  if (!PyArray_Check(object)) return nullptr;
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  return PyArray_ISCARRAY_RO(array) ? array : nullptr;
}

struct IdArray {
  const std::int32_t* data = nullptr;  // null: not plainly right
  std::int64_t count = 0;
};

// The ids themselves are not checked: they may be out of range or repeated. Not for None.
inline IdArray read_ids(nanobind::handle given) {
  PyArrayObject* array = as_plain_array(given.ptr());
  if (array == nullptr || PyArray_NDIM(array) != 1 || PyArray_TYPE(array) != NPY_INT32) return {};
  const std::int64_t count = PyArray_DIM(array, 0);
  if (count == 0) return {};
  return {static_cast<const std::int32_t*>(PyArray_DATA(array)), count};
}

[[noreturn]] inline void refuse_ids() {
  throw nanobind::value_error("env_ids must be idle, distinct and in range, as int32");
}

struct ActionArray {
  const void* data = nullptr;
  std::int32_t dtype = -1;  // -1: not plainly right
};

// One action of the space in each of `count` rows. The values are not checked.
inline ActionArray read_actions(nanobind::handle given, const ef_array& space, std::int64_t count) {
  PyArrayObject* array = as_plain_array(given.ptr());
  if (array == nullptr || PyArray_NDIM(array) != 1 + space.ndim || PyArray_DIM(array, 0) != count) return {};
  for (int axis = 0; axis < space.ndim; ++axis) {
    if (PyArray_DIM(array, axis + 1) != space.shape[axis]) return {};
  }
  return {PyArray_DATA(array), dtype_of_array(array)};
}

// Four words for each of `count` envs.
inline const std::uint32_t* read_seeds(nanobind::handle given, std::int64_t count) {
  PyArrayObject* array = as_plain_array(given.ptr());
  if (array == nullptr || PyArray_TYPE(array) != NPY_UINT32 || PyArray_SIZE(array) != 4 * count) {
    throw nanobind::value_error("seeds must be a contiguous uint32 array of shape (rows, 4)");
  }
  return static_cast<const std::uint32_t*>(PyArray_DATA(array));
}

// --- arrays that are returned ------------------------------------------------------------------------------------------

// An array over `data` that keeps `owner` alive. Takes over the references to the descriptor and the owner. Returns null
// with a Python error set on failure.
inline PyObject* wrap_memory(PyArray_Descr* descriptor, int ndim, const npy_intp* shape, void* data, PyObject* owner) {
  PyObject* array = PyArray_NewFromDescr(&PyArray_Type, descriptor, ndim, shape, nullptr, data, NPY_ARRAY_CARRAY, nullptr);
  if (array == nullptr) {
    Py_DECREF(owner);
    return nullptr;
  }
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array), owner) < 0) {
    Py_DECREF(array);
    return nullptr;
  }
  return array;
}

// A new array with one number per row, and its data.
template <class Number>
std::pair<nanobind::object, Number*> new_column(int type, std::int64_t num_rows) {
  npy_intp shape = num_rows;
  nanobind::object array = checked(PyArray_SimpleNew(1, &shape, type));
  return {array, static_cast<Number*>(PyArray_DATA(as_array(array)))};
}

// Large numpy arrays that reuse the memory of earlier ones: fresh memory of a megabyte costs more in page faults than
// filling it, since the system zeroes every page.
class ArrayMemory {
 public:
  // A new uninitialised array. Takes over the reference to the descriptor. Returns null with a Python error set on failure.
  PyObject* make(PyArray_Descr* descriptor, int ndim, const npy_intp* shape, std::int64_t num_bytes);
  // Page-locks the memory of such an array for as long as it exists, given the array's base object. False for other arrays,
  // and where that cannot be done.
  static bool lock_pages(PyObject* base);

 private:
  struct Memory {
    std::unique_ptr<void, decltype(&std::free)> data;
    std::int64_t num_bytes;
    cuda::PageLock page_lock;  // after the data: unlocked before that is freed
  };
  // Outlives this object for as long as one of its arrays does.
  struct FreeBlocks {
    std::mutex mutex;
    std::vector<std::unique_ptr<Memory>> blocks;
    std::int64_t num_bytes = 0;  // of each block
  };
  struct Block {
    std::shared_ptr<FreeBlocks> free;
    std::unique_ptr<Memory> memory;
  };
  static void release(PyObject* capsule);

  std::shared_ptr<FreeBlocks> free_ = std::make_shared<FreeBlocks>();
};

// A numpy array over memory that holds one row per env: row i belongs to env i. Empty if made from None.
class Column {
 public:
  explicit Column(nanobind::handle array);
  explicit operator bool() const { return array_.is_valid(); }

  char* row(std::int32_t env_id) const { return data_ + row_bytes_ * env_id; }
  std::int64_t row_bytes() const { return row_bytes_; }
  void clear_row(std::int32_t env_id) const { std::memset(row(env_id), 0, static_cast<std::size_t>(row_bytes_)); }
  // The array itself, whose memory the next batch overwrites. A new reference.
  PyObject* view() const { return Py_NewRef(array_.ptr()); }
  // A new array with the rows of env_ids, in that order. env_ids null: of envs 0 to count - 1.
  nanobind::object gather(const std::int32_t* env_ids, std::int64_t count) const;
  // The same, with zeros in the rows of envs for which is_wanted(env_id) is false.
  template <class IsWanted>
  nanobind::object gather_some(const std::int32_t* env_ids, std::int64_t count, IsWanted&& is_wanted) const {
    nanobind::object made = new_array(count, true);
    char* target = PyArray_BYTES(as_array(made));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t env_id = env_ids != nullptr ? env_ids[i] : static_cast<std::int32_t>(i);
      if (is_wanted(env_id)) std::memcpy(target + i * row_bytes_, row(env_id), static_cast<std::size_t>(row_bytes_));
    }
    return made;
  }

 protected:
  PyArray_Descr* descriptor_ = nullptr;
  int row_ndim_ = 0;
  const npy_intp* row_shape_ = nullptr;
  std::int64_t row_bytes_ = 0;

 private:
  nanobind::object new_array(std::int64_t count, bool is_zeroed) const;

  nanobind::object array_;  // keeps the memory alive
  char* data_ = nullptr;
  std::shared_ptr<ArrayMemory> memory_ = std::make_shared<ArrayMemory>();
};

}  // namespace envfleet::bindings
