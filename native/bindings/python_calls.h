// Calls into Python from a thread that may be left behind, and what they raise.
//
// With the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <thread>

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

namespace envfleet::bindings {

// Calls into Python. A thread that was left behind and comes back while the interpreter ends is taken down by
// unwinding its stack, and destructors would run without the GIL: it stays here instead, until the process is gone.
template <class Call>
PyObject* python(Call&& call) {
#if defined(__GLIBCXX__)
  try {
    return call();
  } catch (abi::__forced_unwind&) {
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
#else
  return call();
#endif
}

// For calls that are made for what they do: lets go of the answer, or throws what was raised.
inline void check(PyObject* answer) {
  if (answer == nullptr) throw nanobind::python_error();
  Py_DECREF(answer);
}

// Takes the pending exception, with its traceback attached.
inline nanobind::object take_exception() {
#if PY_VERSION_HEX >= 0x030C0000
  return nanobind::steal(PyErr_GetRaisedException());
#else
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return nanobind::steal(value);
#endif
}

}  // namespace envfleet::bindings
