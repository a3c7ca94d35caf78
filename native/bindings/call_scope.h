// How a native call of a pool enters its call guard (engine/call_guard.h), waits without the GIL, and leaves.
//
// Thread safety: everything here is used with the GIL held, except CallWithoutGil.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>

#include "bindings/python_calls.h"
#include "engine/call_guard.h"
#include "engine/wait.h"

namespace envfleet::bindings {

// How long closing a pool waits: for another thread's call to end, for workers to leave.
constexpr std::int64_t kCloseTimeoutNs = 5'000'000'000;
// How long a call that was cancelled may take to end.
constexpr std::int64_t kCancelTimeoutNs = 1'000'000'000;
// How long what an interrupted call has sent may take to finish.
constexpr std::int64_t kGraceNs = 1'000'000'000;
// How long a wait without the GIL lasts until it looks for signals and close().
constexpr std::int64_t kSliceNs = 50'000'000;
// How long another core may take to see a write of this one; far less in practice.
constexpr std::int64_t kSettleNs = 2'000'000;

// Negative: no limit. Capped where nanoseconds would overflow.
inline std::int64_t to_ns(double seconds) {
  return seconds < 0 ? -1 : static_cast<std::int64_t>(std::min(seconds, 1e9) * 1e9);
}

[[noreturn]] inline void raise_error(const char* error_class, const char* message) {
  PyErr_SetString(nanobind::module_::import_("envfleet.core.errors").attr(error_class).ptr(), message);
  throw nanobind::python_error();
}

// Runs the close() that was deferred to the call that has just ended.
void continue_close(engine::CallGuard& guard) noexcept;
[[noreturn]] void refuse_entry(engine::CallGuard::Entry entry);
[[noreturn]] void raise_closed_while_waiting();

// For calls of any thread at any time, which do not enter the guard.
inline void refuse_forked(const engine::CallGuard& guard) {
  if (guard.is_forked()) refuse_entry(engine::CallGuard::Entry::forked);
}

// Held while a call is inside the guard. Raises if the call was not let in.
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
  // Whether steps, sends and receives are refused until the Python layer has dealt with what an earlier call left behind.
  bool needs_attention() const { return guard_.needs_attention(); }
  // See CallGuard::reserve(). Within a method, which excludes other threads anyway, this does nothing.
  void reserve() {
    if (entry_ == Entry::inside) guard_.reserve();
  }

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

// A native call that is a public method by itself, of a thread without the GIL. It raises nothing: if it was not let in,
// a call with the GIL says why.
class CallWithoutGil {
 public:
  explicit CallWithoutGil(engine::CallGuard& guard) : guard_(guard), entry_(guard.enter_call()) {}
  ~CallWithoutGil() {
    if (!is_inside() || !guard_.leave(entry_)) return;
    const GilAcquire gil;
    if (gil.is_held()) continue_close(guard_);
  }
  CallWithoutGil(const CallWithoutGil&) = delete;
  CallWithoutGil& operator=(const CallWithoutGil&) = delete;
  bool may_go_on() const { return is_inside() && !guard_.needs_attention(); }

 private:
  bool is_inside() const { return entry_ == engine::CallGuard::Entry::inside; }

  engine::CallGuard& guard_;
  const engine::CallGuard::Entry entry_;
};

// Runs body() with the GIL released, or holds it if the work ends before another thread could make use of it: giving it up
// costs up to a switch interval (5 ms) while another Python thread is busy.
template <class Body>
auto without_gil_if(bool release, Body&& body) {
  if (!release) return body();
  GilRelease released;
  return body();
}

// Calls attempt(slice_ns) until it returns something or timeout_ns (negative: no limit) has passed, and handles signals in
// between: Ctrl-C must reach a caller that waits, and so must close().
template <class Attempt>
auto wait_in_slices(const engine::CallGuard& guard, std::int64_t timeout_ns, Attempt&& attempt)
    -> decltype(attempt(std::int64_t{})) {
  const std::int64_t start = engine::now_ns();
  for (;;) {
    const std::int64_t rest = timeout_ns < 0 ? kSliceNs : timeout_ns - (engine::now_ns() - start);
    auto result = without_gil_if(true, [&] { return attempt(std::clamp<std::int64_t>(rest, 0, kSliceNs)); });
    if (result) return result;
    if (timeout_ns >= 0 && rest <= kSliceNs) return result;
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
    if (guard.is_cancelled()) raise_closed_while_waiting();
  }
}

// The same for a call that has sent something to envs. If a signal handler raises, what was sent may finish for a second
// more, which a second exception ends at once. If it finishes, discard(result) takes it from what is in flight, and the call
// counts as done (discard() also ends the parts of a method whose last part it is); otherwise the pool is interrupted. The
// exception is raised in either case.
template <class Attempt, class Discard>
auto wait_or_discard(engine::CallGuard& guard, std::int64_t timeout_ns, Attempt&& attempt, Discard&& discard)
    -> decltype(attempt(std::int64_t{})) {
  try {
    return wait_in_slices(guard, timeout_ns, attempt);
  } catch (nanobind::python_error&) {
    if (guard.is_cancelled()) throw;
    guard.set_interrupted(true);
    if (auto result = wait_in_slices(guard, kGraceNs, attempt)) {
      discard(result);
      guard.set_interrupted(false);
    }
    throw;
  }
}

}  // namespace envfleet::bindings
