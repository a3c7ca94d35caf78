// Page-locked memory and copies to and from a GPU, for envfleet.apis.torch. Streams and device memory are addresses.
#include "engine/cuda.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/native_pool.h"
#include "bindings/numpy_arrays.h"

namespace nb = nanobind;

namespace envfleet::bindings {

namespace {

constexpr std::int64_t kAlignment = 64;    // of arrays in device memory, as in the engine's buffers
constexpr std::int64_t kPageBytes = 4096;  // two page-locked ranges may not share a page
constexpr std::size_t kMaxShared = 64;     // ranges of shared memory that one uploader locks

std::int64_t aligned(std::int64_t num_bytes, std::int64_t alignment = kAlignment) {
  return (num_bytes + alignment - 1) / alignment * alignment;
}

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
  engine::PageLock lock_;  // after the array: destroyed before it
};

// Page-locked memory in which small arrays are gathered for one copy.
struct StagingBuffer {
  std::unique_ptr<char, decltype(&std::free)> data;
  std::int64_t num_bytes;
  engine::PageLock page_lock;  // after the data: unlocked before that is freed
};

// Copies batches to device memory, each as few copies as its memory allows:
// - columns of a native batch: one copy of the buffer that holds them, which is page-locked at its first upload;
// - other large arrays, in memory that is recycled or shared with workers: one copy each, page-locked likewise;
// - everything else: one copy of a page-locked staging buffer.
//
// Thread safety: with the GIL held, one thread at a time.
// Invariant: what a copy reads is kept until the copy is done.
class BatchUploader {
 public:
  // Where these arrays come to lie in device memory: (bytes in all, (offset of each)). Returns the same object as the last
  // time if the arrays have the same dtypes, shapes and offsets. start() copies them.
  nb::object plan(nb::tuple arrays) {
    release_done();
    if (staging_ != nullptr) free_staging_.push_back(std::move(staging_));
    copies_.clear();
    reads_shared_rows_ = false;
    signature_.clear();
    offsets_.assign(arrays.size(), -1);
    std::int64_t num_bytes = plan_native(arrays);
    num_bytes = plan_direct(arrays, num_bytes);
    num_bytes = plan_staged(arrays, num_bytes);
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      PyArrayObject* array = as_array(arrays[i]);
      signature_.push_back(PyArray_TYPE(array));
      signature_.insert(signature_.end(), PyArray_DIMS(array), PyArray_DIMS(array) + PyArray_NDIM(array));
      signature_.push_back(-1 - offsets_[i]);  // negative: ends the shape
    }
    if (signature_ != layout_signature_ || !layout_.is_valid()) {
      nb::list offsets;
      for (std::int64_t offset : offsets_) offsets.append(offset);
      layout_ = nb::make_tuple(std::max(num_bytes, kAlignment), nb::tuple(offsets));
      layout_signature_ = signature_;
    }
    return layout_;
  }

  // batch: what owns the memory of the arrays that were planned.
  void start(std::uintptr_t user_stream, std::uintptr_t target, bool on_user_stream, nb::object batch) {
    for (engine::UploadStream::Copy& copy : copies_) copy.target += target;
    const std::int64_t number = uploads_.start(as_pointer(user_stream), copies_, on_user_stream);
    reading_.push_back({number, std::move(batch), std::move(staging_)});
    if (reads_shared_rows_) last_of_shared_rows_ = number;
    copies_.clear();
  }

  void mark_allocated(std::uintptr_t user_stream) { uploads_.mark_allocated(as_pointer(user_stream)); }

  // Waits until no copy reads memory that workers write to. To be called before they write there again.
  void wait_for_shared_rows() {
    wait(last_of_shared_rows_);
    release_done();
  }

  void wait_for_stream(std::uintptr_t user_stream) {
    nb::gil_scoped_release release;
    uploads_.wait_for_stream(as_pointer(user_stream));
  }

  // Waits for all copies and unlocks what was locked here.
  void close() {
    wait(last_of_shared_rows_);
    if (!reading_.empty()) wait(reading_.back().number);
    release_done();
    shared_.clear();
  }

 private:
  struct Reading {
    std::int64_t number;
    nb::object batch;
    std::unique_ptr<StagingBuffer> staging;
  };

  void wait(std::int64_t number) {
    if (number <= uploads_.num_done()) return;
    nb::gil_scoped_release release;
    uploads_.wait(number);
  }

  // Gives back the buffers whose copies are done, so that the engine uses them again while they are cached.
  void release_done() {
    const std::int64_t num_done = uploads_.num_done();
    while (!reading_.empty() && reading_.front().number <= num_done) {
      Reading done = std::move(reading_.front());
      reading_.pop_front();
      if (done.staging != nullptr) free_staging_.push_back(std::move(done.staging));
    }
  }

  std::int64_t plan_native(nb::tuple arrays) {
    PyObject* owner = nullptr;
    const char* data = nullptr;
    std::int64_t first = std::numeric_limits<std::int64_t>::max(), end = 0;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      PyArrayObject* array = as_array(arrays[i]);
      PyObject* base = PyArray_BASE(array);
      if (base == nullptr || (owner != nullptr && base != owner)) continue;
      if (owner == nullptr) {
        engine::BatchBuffer* buffer = batch_buffer_of(base);
        if (buffer == nullptr) continue;
        if (!buffer->lock_pages()) return 0;
        owner = base;
        data = static_cast<const char*>(buffer->data());
      }
      offsets_[i] = PyArray_BYTES(array) - data;
      first = std::min(first, offsets_[i]);
      end = std::max<std::int64_t>(end, offsets_[i] + PyArray_NBYTES(array));
    }
    if (owner == nullptr) return 0;
    // From the first column that is wanted to the last: what lies between them comes along.
    for (std::int64_t& offset : offsets_) offset = offset < 0 ? -1 : offset - first;
    copies_.push_back({0, data + first, static_cast<std::size_t>(end - first)});
    return aligned(end - first);
  }

  std::int64_t plan_direct(nb::tuple arrays, std::int64_t num_bytes) {
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      PyArrayObject* array = as_array(arrays[i]);
      const std::int64_t size = PyArray_NBYTES(array);
      if (offsets_[i] >= 0 || size < engine::kDirectUploadBytes || !PyArray_IS_C_CONTIGUOUS(array)) continue;
      const bool is_recycled = is_locked_recycled(array);
      if (!is_recycled && !is_locked_shared(array)) continue;
      offsets_[i] = num_bytes;
      copies_.push_back({static_cast<std::uintptr_t>(num_bytes), PyArray_DATA(array), static_cast<std::size_t>(size)});
      if (!is_recycled) reads_shared_rows_ = true;
      num_bytes += aligned(size);
    }
    return num_bytes;
  }

  std::int64_t plan_staged(nb::tuple arrays, std::int64_t num_bytes) {
    const std::int64_t first = num_bytes;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      if (offsets_[i] < 0) num_bytes += aligned(PyArray_NBYTES(as_array(arrays[i])));
    }
    if (num_bytes == first) {  // nothing is left, or arrays without rows
      for (std::int64_t& offset : offsets_) offset = offset < 0 ? 0 : offset;
      return num_bytes;
    }
    staging_ = take_staging(num_bytes - first);
    std::int64_t position = 0;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      if (offsets_[i] >= 0) continue;
      const nb::object array = checked(reinterpret_cast<PyObject*>(PyArray_GETCONTIGUOUS(as_array(arrays[i]))));
      const std::int64_t size = PyArray_NBYTES(as_array(array));
      std::memcpy(staging_->data.get() + position, PyArray_DATA(as_array(array)), static_cast<std::size_t>(size));
      offsets_[i] = first + position;
      position += aligned(size);
    }
    copies_.push_back({static_cast<std::uintptr_t>(first), staging_->data.get(), static_cast<std::size_t>(position)});
    return num_bytes;
  }

  std::unique_ptr<StagingBuffer> take_staging(std::int64_t num_bytes) {
    while (!free_staging_.empty()) {
      std::unique_ptr<StagingBuffer> buffer = std::move(free_staging_.back());
      free_staging_.pop_back();
      if (buffer->num_bytes >= num_bytes) return buffer;
    }
    const auto size = static_cast<std::size_t>(aligned(num_bytes, kPageBytes));
    std::unique_ptr<StagingBuffer> buffer(new StagingBuffer{
        {static_cast<char*>(std::aligned_alloc(kPageBytes, size)), &std::free}, static_cast<std::int64_t>(size), {}});
    if (buffer->data == nullptr) throw std::bad_alloc();
    // Where the driver refuses, the copy is slower and right all the same.
    buffer->page_lock.lock(buffer->data.get(), size);
    return buffer;
  }

  // Whether the array lies in memory that later batches use too, and that is page-locked.
  static bool is_locked_recycled(PyArrayObject* array) {
    return PyArray_BASE(array) != nullptr && ArrayMemory::lock_pages(PyArray_BASE(array));
  }

  // Whether it lies in memory that workers write to, and that is page-locked.
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

  // The plan; filled by plan(), used up by start().
  std::vector<engine::UploadStream::Copy> copies_;  // targets are offsets
  std::vector<std::int64_t> offsets_;
  std::vector<std::int64_t> signature_, layout_signature_;
  nb::object layout_;
  std::unique_ptr<StagingBuffer> staging_;
  bool reads_shared_rows_ = false;  // a copy of the plan reads rows where workers write them

  std::deque<Reading> reading_;
  std::vector<std::unique_ptr<StagingBuffer>> free_staging_;
  std::map<void*, std::unique_ptr<ArrayPageLock>> shared_;  // by address
  std::int64_t last_of_shared_rows_ = 0;
  // Last: destroyed first, which waits for the copies.
  engine::UploadStream uploads_;
};

// Page-locks the memory of a batch's array for as long as that memory exists. False for arrays whose memory is not recycled,
// and where that cannot be done.
bool lock_pages(nb::handle array) {
  if (!PyArray_Check(array.ptr()) || PyArray_BASE(as_array(array)) == nullptr) return false;
  PyObject* base = PyArray_BASE(as_array(array));
  if (engine::BatchBuffer* buffer = batch_buffer_of(base)) return buffer->lock_pages();
  return ArrayMemory::lock_pages(base);
}

// Python's handle to an ArrayMemory.
nb::object empty_array(ArrayMemory& memory, const std::vector<std::int64_t>& shape, nb::handle dtype) {
  PyArray_Descr* descriptor = nullptr;
  if (PyArray_DescrConverter(dtype.ptr(), &descriptor) != NPY_SUCCEED) throw nb::python_error();
  std::int64_t num_bytes = PyDataType_ELSIZE(descriptor);
  for (std::int64_t size : shape) num_bytes *= size;
  const std::vector<npy_intp> dims(shape.begin(), shape.end());
  return checked(memory.make(descriptor, static_cast<int>(dims.size()), dims.data(), num_bytes));
}

}  // namespace

void bind_cuda(nb::module_& module) {
  nb::class_<ArrayMemory>(module, "ArrayMemory")
      .def(nb::init<>())
      .def("empty", &empty_array, nb::arg("shape"), nb::arg("dtype"));
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
        engine::copy_to_host(as_pointer(stream), PyArray_DATA(as_array(array)), source,
                             static_cast<std::size_t>(PyArray_NBYTES(as_array(array))));
      },
      nb::arg("stream"), nb::arg("array"), nb::arg("source"));
  module.def(
      "synchronize_stream", [](std::uintptr_t stream) { engine::synchronize_stream(as_pointer(stream)); }, nb::arg("stream"),
      nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace envfleet::bindings
