// Page-locked memory: of a batch's buffer, or of any array for as long as its PageLock lives.
#include <nanobind/nanobind.h>

#include "batch_arrays.h"
#include "bindings.h"
#include "numpy_api.h"
#include "page_lock.h"

namespace nb = nanobind;

namespace envfleet::bindings {

namespace {

// Holds the array, so that its memory is unlocked before it is freed.
class ArrayPageLock {
 public:
  explicit ArrayPageLock(nb::object array) : array_(std::move(array)) {
    if (!PyArray_Check(array_.ptr())) throw nb::type_error("PageLock expected a numpy array");
    auto* raw = reinterpret_cast<PyArrayObject*>(array_.ptr());
    lock_.lock(PyArray_DATA(raw), static_cast<std::size_t>(PyArray_NBYTES(raw)));
  }
  bool is_locked() const { return lock_.is_locked(); }

 private:
  nb::object array_;
  engine::PageLock lock_;  // after the array: destroyed before it
};

}  // namespace

void bind_page_lock(nb::module_& module) {
  nb::class_<ArrayPageLock>(module, "PageLock")
      .def(nb::init<nb::object>(), nb::arg("array"))
      .def_prop_ro("is_locked", &ArrayPageLock::is_locked);
  module.def("page_locked_batch", &page_locked_batch, nb::arg("arrays"));
  module.def(
      "copy_to_device",
      [](std::uintptr_t target, std::uintptr_t source, std::size_t num_bytes, std::uintptr_t stream) {
        return engine::copy_to_device(target, reinterpret_cast<const void*>(source), num_bytes,
                                      reinterpret_cast<void*>(stream));
      },
      nb::arg("target"), nb::arg("source"), nb::arg("num_bytes"), nb::arg("stream"));
}

}  // namespace envfleet::bindings
