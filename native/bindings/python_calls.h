// Calls into Python from a thread that may be left behind, what they raise, and text from C++ as Python's.
//
// With the GIL held, unless it says otherwise.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <string_view>
#include <thread>

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

namespace envfleet::bindings {

// Calls into Python. Up to Python 3.13 a daemon thread that wants the GIL while the interpreter ends is ended
// by unwinding its stack: destructors would run without the GIL, and the first noexcept function would end the
// process with SIGABRT. Such a thread waits here instead, until the process is gone.
template <class Call>
decltype(auto) python(Call&& call) {
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

// Lets go of the GIL. Not nanobind's: that takes it back without python().
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease() {
    python([this] { PyEval_RestoreThread(state_); });
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* const state_;
};

// Text that an env, a plug-in or the system wrote: UTF-8 by convention, any bytes in practice.
// Null with a Python error set when memory ran out.
inline PyObject* decode(std::string_view text) {
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

inline nanobind::str to_text(std::string_view text) {
  PyObject* decoded = decode(text);
  if (decoded == nullptr) throw nanobind::python_error();
  return nanobind::steal<nanobind::str>(decoded);
}

// Sets the Python error that a translator of C++ exceptions, or a caller who then throws python_error, gives out.
inline void set_error(PyObject* type, std::string_view text) {
  PyObject* decoded = decode(text);
  if (decoded == nullptr) return;  // out of memory, which is then the error
  PyErr_SetObject(type, decoded);
  Py_DECREF(decoded);
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
