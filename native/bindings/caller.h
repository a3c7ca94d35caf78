// The caller's side of a pool: who may come in, and waiting without the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>

#include "call_guard.h"
#include "python_calls.h"
#include "wait.h"

namespace envfleet::bindings {

[[noreturn]] inline void raise_error(const char* error_class, const char* message) {
  PyErr_SetString(nanobind::module_::import_("envfleet.errors").attr(error_class).ptr(), message);
  throw nanobind::python_error();
}

// Runs the close() that was left to the call that has just ended.
void continue_close(engine::CallGuard& guard) noexcept;
[[noreturn]] void refuse_entry(engine::CallGuard::Entry entry);
[[noreturn]] void raise_closed_while_waiting();

// Held while a call is inside. Throws when the call has no business there. With the GIL held.
class CallScope {
 public:
  using Entry = engine::CallGuard::Entry;
  CallScope(engine::CallGuard& guard, Entry entry) : guard_(guard), entry_(entry) {
    if (entry != Entry::inside && entry != Entry::nested) [[unlikely]]
      refuse_entry(entry);
  }
  ~CallScope() {
    if (guard_.leave(entry_)) [[unlikely]]
      continue_close(guard_);
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  engine::CallGuard& guard_;
  const Entry entry_;
};

// A native call that is a public method by itself.
struct WholeCall : CallScope {
  explicit WholeCall(engine::CallGuard& guard) : CallScope(guard, guard.enter_call()) {}
};

// A native call that may be part of a public method.
struct PartialCall : CallScope {
  explicit PartialCall(engine::CallGuard& guard) : CallScope(guard, guard.enter_part()) {}
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
// looking for signals in between: Ctrl-C must reach a caller who waits, and so must close().
template <class Attempt>
auto wait_in_slices(const engine::CallGuard& guard, std::int64_t timeout_ns, Attempt&& attempt)
    -> decltype(attempt(std::int64_t{})) {
  constexpr std::int64_t kSlice = 50'000'000;
  const std::int64_t start = engine::now_ns();
  for (;;) {
    const std::int64_t rest = timeout_ns < 0 ? kSlice : timeout_ns - (engine::now_ns() - start);
    auto result = without_gil_if(true, [&] { return attempt(std::clamp<std::int64_t>(rest, 0, kSlice)); });
    if (result) return result;
    if (timeout_ns >= 0 && rest <= kSlice) return result;
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
    if (guard.is_interrupted()) raise_closed_while_waiting();
  }
}

}  // namespace envfleet::bindings
