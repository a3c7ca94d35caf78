// Calls into Python: from threads that may outlive the interpreter, their exceptions, text and keyword arguments.
//
// Thread safety: everything here is used with the GIL held, unless it says otherwise.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstddef>
#include <string_view>
#include <thread>
#include <utility>

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

namespace envfleet::bindings {

// Calls into Python. Up to Python 3.13, a daemon thread that requests the GIL during finalization is terminated by
// unwinding its stack: destructors would run without the GIL, and the first noexcept function would end the process with
// SIGABRT. Such a thread waits here instead, until the process is gone.
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

// Releases the GIL. nanobind's own class would take it back without python().
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

// Takes the GIL in a thread that may never have had it, such as XLA's. Without an interpreter, which has ended, nothing is
// held.
class GilAcquire {
 public:
  GilAcquire() : is_held_(Py_IsInitialized() != 0) {
    if (is_held_) python([this] { state_ = PyGILState_Ensure(); });
  }
  ~GilAcquire() {
    if (is_held_) PyGILState_Release(state_);
  }
  GilAcquire(const GilAcquire&) = delete;
  GilAcquire& operator=(const GilAcquire&) = delete;
  bool is_held() const { return is_held_; }

 private:
  const bool is_held_;
  PyGILState_STATE state_{};
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

// Sets a Python error for a translator of C++ exceptions, or for a caller that then throws python_error.
inline void set_error(PyObject* type, std::string_view text) {
  PyObject* decoded = decode(text);
  if (decoded == nullptr) return;  // out of memory, which is then the error
  PyErr_SetObject(type, decoded);
  Py_DECREF(decoded);
}

// Takes over a new reference; throws the Python error that is set if it is null.
inline nanobind::object checked(PyObject* made) {
  if (made == nullptr) throw nanobind::python_error();
  return nanobind::steal(made);
}

// The same for a call whose result is not needed.
inline void check(PyObject* result) { checked(result); }

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

// The keyword arguments of a constructor, read into the fields of an options struct. Raises TypeError for an argument that
// is missing, of the wrong type or unknown.
class Keywords {
 public:
  Keywords(const char* function, nanobind::kwargs given) : function_(function), given_(std::move(given)) {}

  template <class T>
  Keywords& read(const char* name, T& value) {
    if (!given_.contains(name)) refuse("expected the argument", name);
    if (!nanobind::try_cast<T>(given_[name], value)) refuse("got a value of the wrong type for", name);
    ++num_read_;
    return *this;
  }
  void finish() const {
    if (given_.size() != num_read_) refuse("got an unknown argument beside", "those that it declares");
  }

 private:
  [[noreturn]] void refuse(const char* what, const char* name) const {
    PyErr_Format(PyExc_TypeError, "%s %s %s", function_, what, name);
    throw nanobind::python_error();
  }

  const char* function_;
  nanobind::kwargs given_;
  std::size_t num_read_ = 0;
};

}  // namespace envfleet::bindings
