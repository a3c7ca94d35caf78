// What the engine lends to envs of numpy: its distributions, and its sine and cosine.
#pragma once

#include <cstdint>

#include "envfleet/abi.h"

namespace envfleet::engine {

const ef_host* numpy_host();

// The signature of a ufunc's inner loop (PyUFuncGenericFunction), without Python.h.
using UfuncLoop = void (*)(char** args, const std::intptr_t* count, const std::intptr_t* steps, void* data);

struct UfuncLoops {
  UfuncLoop loop = nullptr;
  void* data = nullptr;
};

// Replaces the C library's functions, which serve until then, with numpy's own inner loops. Once, before any
// env is made.
void use_numpy_loops(UfuncLoops sin, UfuncLoops cos, UfuncLoops sin_f, UfuncLoops cos_f);

}  // namespace envfleet::engine
