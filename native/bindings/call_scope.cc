// CallGuard in Python: whole public methods run through it, and so does close().
#include "bindings/call_scope.h"

#include <nanobind/nanobind.h>

#include <chrono>
#include <thread>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace envfleet::bindings {

using engine::CallGuard;

void refuse_entry(CallGuard::Entry entry) {
  if (entry == CallGuard::Entry::forked) {
    raise_error("ForkedPoolError",
                "this pool was made before fork() and its workers stayed with the parent; "
                "expected it to be used there, got a call in the child: make a new pool in the child");
  }
  if (entry == CallGuard::Entry::closed) raise_error("PoolClosedError", "this pool is closed; make a new one");
  raise_error("CallOrderError",
              "expected one call of this pool at a time, got a second one before the first returned: two threads called "
              "this pool at once, or a signal handler or an env called it back; use a lock, or one pool per thread");
}

void raise_closed_while_waiting() {
  raise_error("PoolClosedError", "this pool was closed while a call waited; make a new one");
}

void continue_close(CallGuard& guard) noexcept {
  // A daemon thread that is taken down at exit passes here without the GIL.
  if (PyGILState_Check() == 0) return;
  try {
    if (const auto close = guard.take_close()) close();
  } catch (nb::python_error& error) {
    // It cannot be raised: the call that has ended has a result or an exception of its own.
    error.discard_as_unraisable("close()");
  }
}

namespace {

// A context manager for Python code that takes the place of a native call.
struct PartOfCall {
  CallGuard* guard;
  CallGuard::Entry entry;
};

nb::object run(CallGuard& guard, nb::callable function, nb::args args, nb::kwargs kwargs) {
  const CallScope method(guard, guard.enter_method());
  PyObject* result = PyObject_Call(function.ptr(), args.ptr(), kwargs.ptr());
  const bool is_between_parts = guard.is_between_parts();
  guard.end_parts();
  if (result != nullptr) return nb::steal(result);
  nb::python_error error;
  // What the package itself raises leaves the pool as the method says.
  if (is_between_parts && !error.matches(nb::module_::import_("envfleet.core.errors").attr("EnvfleetError"))) {
    guard.set_interrupted(true);
  }
  throw error;
}

// Returns false after timeout_ns.
bool wait_to_end(CallGuard& guard, std::int64_t timeout_ns, bool waits_for_other_close) {
  const std::int64_t deadline = engine::now_ns() + timeout_ns;
  while (!guard.try_enter_to_end()) {
    // Another close() is bounded by itself.
    if (engine::now_ns() >= deadline && !(waits_for_other_close && guard.is_ending())) return false;
    {
      nb::gil_scoped_release released;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  return true;
}

class EndScope {
 public:
  explicit EndScope(CallGuard& guard) : guard_(guard) {}
  ~EndScope() {
    if (is_ended) guard_.take_close();  // it holds the executor, which holds the guard
    guard_.leave_end(is_ended);
  }
  bool is_ended = false;

 private:
  CallGuard& guard_;
};

void defer_to_current_call(CallGuard& guard, nb::callable close) {
  guard.put_close([close] { close(); });
}

nb::object close(CallGuard& guard, nb::callable end, nb::callable cancel, nb::callable close_again, double patience_s) {
  if (guard.is_forked() || guard.is_ended()) return nb::list();
  guard.begin_close();
  if (guard.is_mine()) {
    // Called by a signal handler or an env in the middle of a call of this thread: waiting for that call would be a
    // deadlock. Or in the middle of a close(), which continues by itself.
    if (guard.is_ending()) return nb::list();
    defer_to_current_call(guard, close_again);
    guard.cancel();
    cancel();
    return nb::list();
  }
  const std::int64_t patience_ns = to_ns(std::max(patience_s, 0.0));
  const bool is_patient = patience_ns > 0;
  if (!wait_to_end(guard, patience_ns, is_patient)) {
    guard.cancel();
    cancel();
    if (!wait_to_end(guard, std::min(patience_ns, kCancelTimeoutNs), is_patient)) {
      // Another thread's close() is in progress: nothing to defer.
      if (guard.is_ending()) return nb::list();
      defer_to_current_call(guard, close_again);
      // Tried once more a moment later: the call may have ended just before it could see the deferred close.
      if (!wait_to_end(guard, kSettleNs, is_patient)) return is_patient ? nb::object(nb::none()) : nb::object(nb::list());
    }
  }
  EndScope scope(guard);
  nb::object report = guard.is_ended() ? nb::object(nb::list()) : end();
  scope.is_ended = true;
  return report;
}

}  // namespace

void bind_call_guard(nb::module_& module) {
  nb::class_<CallGuard>(module, "CallGuard")
      .def(nb::init<>())
      .def("run", &run, nb::arg("function"), nb::arg("args"), nb::arg("kwargs"))
      .def(
          "part", [](CallGuard& guard) { return PartOfCall{&guard, CallGuard::Entry::busy}; }, nb::keep_alive<0, 1>())
      .def("close", &close, nb::arg("end"), nb::arg("cancel"), nb::arg("close_again"), nb::arg("patience_s"))
      .def("check_not_cancelled",
           [](const CallGuard& guard) {
             if (guard.is_cancelled()) raise_closed_while_waiting();
           })
      .def("begin_parts", &CallGuard::begin_parts)
      .def("end_parts", &CallGuard::end_parts)
      .def_prop_rw("is_interrupted", &CallGuard::is_interrupted, &CallGuard::set_interrupted)
      .def_prop_rw("has_unreported", &CallGuard::has_unreported, &CallGuard::set_unreported)
      .def_prop_ro("needs_attention", &CallGuard::needs_attention)
      .def_prop_ro("is_mine", &CallGuard::is_mine)
      .def_prop_ro("is_closing", &CallGuard::is_closing)
      .def_prop_ro("is_ended", &CallGuard::is_ended)
      .def_prop_ro("is_forked", &CallGuard::is_forked);
  nb::class_<PartOfCall>(module, "PartOfCall")
      .def("__enter__",
           [](PartOfCall& self) {
             self.entry = self.guard->enter_part();
             if (self.entry != CallGuard::Entry::inside && self.entry != CallGuard::Entry::nested) refuse_entry(self.entry);
           })
      .def("__exit__", [](PartOfCall& self, nb::args) {
        if (self.guard->leave(self.entry)) continue_close(*self.guard);
      });
}

}  // namespace envfleet::bindings
