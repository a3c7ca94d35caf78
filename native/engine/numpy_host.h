// What the engine lends to envs of numpy: its distributions, and its elementary functions.
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

enum Function { kSin, kCos, kSinF, kCosF, kExp, kLog1p, kTanh, kArcsinh, kArctan2, kNumFunctions };

// Replaces the C library's function, which serves until then, with numpy's own inner loop. Once for each, before
// any env is made.
void use_numpy_loop(Function function, UfuncLoops loops);

}  // namespace envfleet::engine
