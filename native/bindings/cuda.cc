// Page-locked memory and copies to and from a GPU, for envfleet.apis.torch: numpy arrays for native/cuda. Streams and device
// memory are addresses.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/native_pool.h"
#include "bindings/numpy_arrays.h"
#include "cuda/batch_uploader.h"
#include "cuda/driver.h"

namespace nb = nanobind;

namespace envfleet::bindings {

namespace {

constexpr std::size_t kMaxShared = 64;  // ranges of shared memory that one uploader locks

void* as_pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

// Holds the array, so that its memory is unlocked before it is freed.
class ArrayPageLock {
 public:
  explicit ArrayPageLock(nb::object array) : array_(std::move(array)) {
    if (!PyArray_Check(array_.ptr())) throw nb::type_error("PageLock expected a numpy array");
    lock_.lock(PyArray_DATA(as_array(array_)), static_cast<std::size_t>(PyArray_NBYTES(as_array(array_))));
  }
  bool is_locked() const { return lock_.is_locked(); }

 private:
  nb::object array_;
  cuda::PageLock lock_;  // after the array: destroyed before it
};

// A cuda::BatchUploader for numpy arrays.
//
// Thread safety: with the GIL held, one thread at a time.
class BatchUploader {
 public:
  // Where these arrays come to lie in device memory: (bytes in all, (offset of each)). Returns the same object as the last
  // time if the arrays have the same dtypes, shapes and offsets. start() copies them.
  nb::object plan(nb::tuple arrays) {
    std::vector<cuda::UploadSource> sources;
    std::vector<nb::object> contiguous;
    for (nb::handle array : arrays) sources.push_back(source_of(as_array(array), contiguous));
    const cuda::UploadPlan& plan = uploader_.plan(sources);
    std::vector<std::int64_t> signature;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      PyArrayObject* array = as_array(arrays[i]);
      signature.push_back(PyArray_TYPE(array));
      signature.insert(signature.end(), PyArray_DIMS(array), PyArray_DIMS(array) + PyArray_NDIM(array));
      signature.push_back(-1 - plan.offsets()[i]);  // negative: ends the shape
    }
    if (signature != signature_ || !layout_.is_valid()) {
      nb::list offsets;
      for (std::int64_t offset : plan.offsets()) offsets.append(offset);
      layout_ = nb::make_tuple(std::max<std::int64_t>(plan.num_bytes(), 1), nb::tuple(offsets));
      signature_ = std::move(signature);
    }
    return layout_;
  }

  // batch: what owns the memory of the arrays that were planned.
  void start(std::uintptr_t user_stream, std::uintptr_t target, bool on_user_stream, nb::object batch) {
    const auto release = [](void* object) { Py_DECREF(static_cast<PyObject*>(object)); };
    std::shared_ptr<void> owner(batch.release().ptr(), release);
    uploader_.start(as_pointer(user_stream), target, on_user_stream, std::move(owner));
  }

  void mark_allocated(std::uintptr_t user_stream) { uploader_.stream().mark_allocated(as_pointer(user_stream)); }

  // Waits until no copy reads memory that workers write to. To be called before they write there again.
  void wait_for_shared_rows() { wait(uploader_.last_of_shared_memory()); }

  void wait_for_stream(std::uintptr_t user_stream) {
    nb::gil_scoped_release release;
    uploader_.stream().wait_for_stream(as_pointer(user_stream));
  }

  // Waits for all copies and unlocks what was locked here.
  void close() {
    wait(uploader_.last());
    shared_.clear();
  }

 private:
  void wait(std::int64_t number) {
    if (!uploader_.is_done(number)) {
      nb::gil_scoped_release release;
      uploader_.wait(number);
    }
    uploader_.release_done();
  }

  // contiguous: gets a copy of an array that is not; its memory is read while the plan is made.
  cuda::UploadSource source_of(PyArrayObject* array, std::vector<nb::object>& contiguous) {
    cuda::UploadSource source{PyArray_BYTES(array), PyArray_NBYTES(array)};
    if (!PyArray_IS_C_CONTIGUOUS(array)) {
      contiguous.push_back(checked(reinterpret_cast<PyObject*>(PyArray_GETCONTIGUOUS(array))));
      source.data = PyArray_BYTES(as_array(contiguous.back()));
      return source;
    }
    PyObject* base = PyArray_BASE(array);
    if (base == nullptr) return source;
    if (engine::BatchBuffer* buffer = batch_buffer_of(base)) {
      if (buffer->lock_pages()) source.block = buffer;
    } else if (source.num_bytes >= cuda::kDirectUploadBytes) {  // below, a lock would not be used
      const bool is_recycled = ArrayMemory::lock_pages(base);
      source.is_shared = !is_recycled && is_locked_shared(array);
      source.is_locked = is_recycled || source.is_shared;
    }
    return source;
  }

  // Whether the array lies in memory that workers write to, and that is page-locked.
  bool is_locked_shared(PyArrayObject* array) {
    while (PyArray_BASE(array) != nullptr && PyArray_Check(PyArray_BASE(array))) array = as_array(PyArray_BASE(array));
    // Memory of numpy's own is that of one batch; a mapping is what workers share with this process.
    if (PyArray_BASE(array) == nullptr) return false;
    auto found = shared_.find(PyArray_DATA(array));
    if (found == shared_.end()) {
      if (shared_.size() == kMaxShared) return false;
      auto lock = std::make_unique<ArrayPageLock>(nb::borrow(reinterpret_cast<PyObject*>(array)));
      found = shared_.emplace(PyArray_DATA(array), std::move(lock)).first;
    }
    return found->second->is_locked();
  }

  std::vector<std::int64_t> signature_;  // of layout_
  nb::object layout_;
  std::map<void*, std::unique_ptr<ArrayPageLock>> shared_;  // by address
  // Last: destroyed first, which waits for the copies.
  cuda::BatchUploader uploader_;
};

// Page-locks the memory of a batch's array for as long as that memory exists. False for arrays whose memory is not recycled,
// and where that cannot be done.
bool lock_pages(nb::handle array) {
  if (!PyArray_Check(array.ptr()) || PyArray_BASE(as_array(array)) == nullptr) return false;
  PyObject* base = PyArray_BASE(as_array(array));
  if (engine::BatchBuffer* buffer = batch_buffer_of(base)) return buffer->lock_pages();
  return ArrayMemory::lock_pages(base);
}

}  // namespace

void bind_cuda(nb::module_& module) {
  nb::class_<ArrayPageLock>(module, "PageLock")
      .def(nb::init<nb::object>(), nb::arg("array"))
      .def_prop_ro("is_locked", &ArrayPageLock::is_locked);
  nb::class_<BatchUploader>(module, "BatchUploader")
      .def(nb::init<>())
      .def("plan", &BatchUploader::plan, nb::arg("arrays"))
      .def("start", &BatchUploader::start, nb::arg("user_stream"), nb::arg("target"), nb::arg("on_user_stream"),
           nb::arg("batch").none())
      .def("mark_allocated", &BatchUploader::mark_allocated, nb::arg("user_stream"))
      .def("wait_for_stream", &BatchUploader::wait_for_stream, nb::arg("user_stream"))
      .def("wait_for_shared_rows", &BatchUploader::wait_for_shared_rows)
      .def("close", &BatchUploader::close);
  module.def("lock_pages", &lock_pages, nb::arg("array"));
  module.def(
      "copy_to_host",
      [](std::uintptr_t stream, nb::handle array, std::uintptr_t source) {
        if (!PyArray_Check(array.ptr())) throw nb::type_error("copy_to_host() expected a numpy array");
        cuda::copy_to_host(as_pointer(stream), PyArray_DATA(as_array(array)), source,
                           static_cast<std::size_t>(PyArray_NBYTES(as_array(array))));
      },
      nb::arg("stream"), nb::arg("array"), nb::arg("source"));
  module.def(
      "synchronize_stream", [](std::uintptr_t stream) { cuda::synchronize_stream(as_pointer(stream)); }, nb::arg("stream"),
      nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace envfleet::bindings
