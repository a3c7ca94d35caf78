// Page-locked memory and copies to a GPU, for envfleet.apis.torch. Streams and device memory are addresses.
#include "engine/cuda.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bindings/bindings.h"
#include "bindings/native_pool.h"
#include "bindings/numpy_arrays.h"

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

using CopyTuple = std::tuple<std::uintptr_t, std::uintptr_t, std::size_t>;

void* as_pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

void bind_cuda(nb::module_& module) {
  nb::class_<ArrayPageLock>(module, "PageLock")
      .def(nb::init<nb::object>(), nb::arg("array"))
      .def_prop_ro("is_locked", &ArrayPageLock::is_locked);
  nb::class_<engine::UploadStream>(module, "UploadStream")
      .def(nb::init<>())
      .def(
          "mark_allocated",
          [](engine::UploadStream& self, std::uintptr_t user_stream) { self.mark_allocated(as_pointer(user_stream)); },
          nb::arg("user_stream"))
      .def(
          "start",
          [](engine::UploadStream& self, std::uintptr_t user_stream, std::uintptr_t target,
             const std::vector<CopyTuple>& raw) {
            std::vector<engine::UploadStream::Copy> copies;
            for (const auto& [offset, source, num_bytes] : raw)
              copies.push_back({target + offset, as_pointer(source), num_bytes});
            return self.start(as_pointer(user_stream), copies);
          },
          nb::arg("user_stream"), nb::arg("target"), nb::arg("copies"))
      .def("num_done", &engine::UploadStream::num_done)
      .def("wait", &engine::UploadStream::wait, nb::arg("number"), nb::call_guard<nb::gil_scoped_release>());
  module.def("page_locked_batch", &page_locked_batch, nb::arg("arrays"));
  module.def(
      "synchronize_stream", [](std::uintptr_t stream) { engine::synchronize_stream(as_pointer(stream)); }, nb::arg("stream"),
      nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace envfleet::bindings
