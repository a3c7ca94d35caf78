// numpy's distributions and elementary functions, as the engine provides them to envs.
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

// Replaces the C library's function, the default, with numpy's own inner loop. Called once per function, before
// any env is made.
void use_numpy_loop(Function function, UfuncLoops loops);

// Afterwards, sin and cos of many values are computed on vectors, if the results are the same. Called after all of
// the loops are set, before any env is made.
void choose_sine();

}  // namespace envfleet::engine
