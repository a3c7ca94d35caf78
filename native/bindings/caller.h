// The caller's side of an engine: who may come in, and waiting without the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>

#include "engine.h"
#include "python_calls.h"
#include "wait.h"

namespace envfleet::bindings {

[[noreturn]] inline void raise_error(const char* error_class, const char* message) {
  PyErr_SetString(nanobind::module_::import_("envfleet.errors").attr(error_class).ptr(), message);
  throw nanobind::python_error();
}

// Held while a call is inside the engine. Throws when the call has no business there.
class CallerGuard {
 public:
  explicit CallerGuard(engine::Engine& engine) : engine_(engine) {
    if (engine.is_forked()) [[unlikely]] {
      raise_error("ForkedPoolError",
                  "this pool was made before fork() and its threads stayed in the parent; "
                  "expected it to be used there, got a call in the child: make a new pool in the child");
    }
    if (!engine.enter()) [[unlikely]] {
      raise_error("CallOrderError",
                  "two threads called this pool at once; expected one caller at a time: use a lock or a pool a thread");
    }
    // Asked inside: close() from another thread is through or has not begun.
    if (engine.is_closed()) [[unlikely]] {
      engine.leave();
      raise_error("PoolClosedError", "this pool is closed; make a new one");
    }
  }
  ~CallerGuard() { engine_.leave(); }
  CallerGuard(const CallerGuard&) = delete;
  CallerGuard& operator=(const CallerGuard&) = delete;

 private:
  engine::Engine& engine_;
};

// Runs body() with the GIL released, or holds it when the work is over before another
// thread could have made use of it: giving it up costs up to a switch interval (5 ms)
// when another Python thread is busy.
template <class Body>
auto without_gil_if(bool release, Body&& body) {
  if (!release) return body();
  GilRelease released;
  return body();
}

// Calls attempt(slice_ns) until it gives something or timeout_ns (negative: none) is over,
// looking for signals in between: Ctrl-C must reach a caller who waits.
template <class Attempt>
auto wait_in_slices(std::int64_t timeout_ns, Attempt&& attempt) -> decltype(attempt(std::int64_t{})) {
  constexpr std::int64_t kSlice = 50'000'000;
  const std::int64_t start = engine::now_ns();
  for (;;) {
    const std::int64_t rest = timeout_ns < 0 ? kSlice : timeout_ns - (engine::now_ns() - start);
    auto result = without_gil_if(true, [&] { return attempt(std::clamp<std::int64_t>(rest, 0, kSlice)); });
    if (result) return result;
    if (timeout_ns >= 0 && rest <= kSlice) return result;
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
  }
}

}  // namespace envfleet::bindings
