// How actions are stored in memory, and whether that matches what an env's step() takes.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "envfleet/abi.h"
#include "envfleet/env_concepts.h"
#include "envfleet/spec.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

namespace detail {

// The dtype in which the engine passes actions of a space to an env.
inline ef_dtype canonical_action_dtype(const ef_array& action) {
  if (action.kind == EF_DISCRETE || action.kind == EF_MULTI_DISCRETE) return EF_INT32;
  return static_cast<ef_dtype>(action.dtype);
}

inline std::int64_t action_row_bytes(const ef_array& action) {
  std::int64_t bytes = size_of(canonical_action_dtype(action));
  for (std::int32_t axis = 0; axis < action.ndim; ++axis) bytes *= action.shape[axis];
  return bytes;
}

// Throws if step() would read these actions as another type.
template <class Env>
void check_action_type(const ef_array& action) {
  using Action = ActionOf<Env>;
  bool fits = false;
  if constexpr (std::is_pointer_v<Action>) {
    fits = action.kind != EF_DISCRETE &&
           canonical_action_dtype(action) == dtype_of<std::remove_const_t<std::remove_pointer_t<Action>>>();
  } else {
    fits = action.kind == EF_DISCRETE;
  }
  if (!fits) {
    const std::string declared =
        action.kind == EF_DISCRETE ? "int" : "const " + type_name(canonical_action_dtype(action)) + "*";
    std::string taken = "int";
    if constexpr (std::is_pointer_v<Action>) {
      taken = "const " + type_name(dtype_of<std::remove_const_t<std::remove_pointer_t<Action>>>()) + "*";
    }
    throw std::invalid_argument("step() takes another type of action than spec() declares: expected " + declared + ", got " +
                                taken);
  }
}

}  // namespace detail

}  // namespace envfleet

#pragma GCC visibility pop
