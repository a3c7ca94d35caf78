// Arrays that a caller gave, looked at as they are: ids, actions, seeds.
//
// Whatever is not plainly right is refused here; the Python layer converts it or explains it.
// Used with the GIL held. What is pointed to belongs to the array.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "envfleet/abi.h"
#include "numpy_api.h"

namespace envfleet::bindings {

struct GivenIds {
  const std::int32_t* data = nullptr;  // null: not plainly right
  std::int64_t count = 0;
};

// Not None, and not yet looked at one by one: they may be out of range or twice the same.
inline GivenIds read_ids(nanobind::handle given) {
  PyArrayObject* array = as_plain_array(given.ptr());
  if (array == nullptr || PyArray_NDIM(array) != 1 || PyArray_TYPE(array) != NPY_INT32) return {};
  const std::int64_t count = PyArray_DIM(array, 0);
  if (count == 0) return {};
  return {static_cast<const std::int32_t*>(PyArray_DATA(array)), count};
}

[[noreturn]] inline void refuse_ids() {
  throw nanobind::value_error("env_ids must be idle, distinct and in range, as int32");
}

struct GivenActions {
  const void* data = nullptr;
  std::int32_t dtype = -1;  // -1: not plainly right
};

// One action of the space in each of `count` rows. Their values are not looked at.
inline GivenActions read_actions(nanobind::handle given, const ef_array& space, std::int64_t count) {
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

}  // namespace envfleet::bindings
