#include "bindings/numpy_arrays.h"

#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace envfleet::bindings {

namespace {

constexpr const char* kCapsuleName = "envfleet.array_memory";
constexpr std::int64_t kLarge = 128 * 1024;  // from this size on malloc maps fresh pages every time
constexpr std::size_t kMaxFree = 4;
constexpr std::size_t kAlignment = 64;
constexpr int kMaxDims = 64;  // of a numpy array

}  // namespace

PyObject* ArrayMemory::make(PyArray_Descr* descriptor, int ndim, const npy_intp* shape, std::int64_t num_bytes) {
  if (num_bytes < kLarge) return PyArray_Empty(ndim, shape, descriptor, 0);
  std::unique_ptr<Memory> memory;
  {
    std::lock_guard lock(free_->mutex);
    if (free_->num_bytes == num_bytes && !free_->blocks.empty()) {
      memory = std::move(free_->blocks.back());
      free_->blocks.pop_back();
    }
  }
  if (memory == nullptr) {
    const auto size = (static_cast<std::size_t>(num_bytes) + kAlignment - 1) / kAlignment * kAlignment;
    memory.reset(new Memory{{std::aligned_alloc(kAlignment, size), &std::free}, num_bytes, {}});
  }
  void* data = memory->data.get();
  if (data == nullptr) {
    Py_DECREF(descriptor);
    return PyErr_NoMemory();
  }
  auto block = std::make_unique<Block>(Block{free_, std::move(memory)});
  PyObject* capsule = PyCapsule_New(block.get(), kCapsuleName, release);
  if (capsule == nullptr) {
    Py_DECREF(descriptor);
    return nullptr;
  }
  static_cast<void>(block.release());  // the capsule's
  return wrap_memory(descriptor, ndim, shape, data, capsule);
}

bool ArrayMemory::lock_pages(PyObject* base) {
  if (!PyCapsule_IsValid(base, kCapsuleName)) return false;
  Memory& memory = *static_cast<Block*>(PyCapsule_GetPointer(base, kCapsuleName))->memory;
  return memory.page_lock.lock(memory.data.get(), static_cast<std::size_t>(memory.num_bytes));
}

void ArrayMemory::release(PyObject* capsule) {
  const std::unique_ptr<Block> block(static_cast<Block*>(PyCapsule_GetPointer(capsule, kCapsuleName)));
  std::vector<std::unique_ptr<Memory>> unused;  // freed after the mutex is unlocked
  FreeBlocks& free = *block->free;
  std::lock_guard lock(free.mutex);
  if (free.num_bytes != block->memory->num_bytes) {  // batches have another size from now on
    unused.swap(free.blocks);
    free.num_bytes = block->memory->num_bytes;
  }
  if (free.blocks.size() < kMaxFree) free.blocks.push_back(std::move(block->memory));
}

Column::Column(nb::handle array) {
  if (array.is_none()) return;
  array_ = nb::borrow(array);
  PyArrayObject* raw = as_array(array);
  data_ = PyArray_BYTES(raw);
  descriptor_ = PyArray_DESCR(raw);
  row_ndim_ = PyArray_NDIM(raw) - 1;
  row_shape_ = PyArray_DIMS(raw) + 1;
  row_bytes_ = PyDataType_ELSIZE(descriptor_);
  for (int axis = 0; axis < row_ndim_; ++axis) row_bytes_ *= row_shape_[axis];
}

nb::object Column::gather(const std::int32_t* env_ids, std::int64_t count) const {
  nb::object made = new_array(count, false);
  char* target = PyArray_BYTES(as_array(made));
  if (env_ids == nullptr) {
    std::memcpy(target, data_, static_cast<std::size_t>(row_bytes_ * count));
    return made;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(target + i * row_bytes_, row(env_ids[i]), static_cast<std::size_t>(row_bytes_));
  }
  return made;
}

nb::object Column::new_array(std::int64_t count, bool is_zeroed) const {
  npy_intp shape[kMaxDims];
  shape[0] = count;
  for (int axis = 0; axis < row_ndim_; ++axis) shape[axis + 1] = row_shape_[axis];
  Py_INCREF(descriptor_);  // both calls take the reference over
  return checked(is_zeroed ? PyArray_Zeros(row_ndim_ + 1, shape, descriptor_, 0)
                           : memory_->make(descriptor_, row_ndim_ + 1, shape, row_bytes_ * count));
}

void bind_array_memory(nb::module_& module) {
  const auto empty = [](ArrayMemory& memory, const std::vector<std::int64_t>& shape, nb::handle dtype) {
    PyArray_Descr* descriptor = nullptr;
    if (PyArray_DescrConverter(dtype.ptr(), &descriptor) != NPY_SUCCEED) throw nb::python_error();
    std::int64_t num_bytes = PyDataType_ELSIZE(descriptor);
    for (std::int64_t size : shape) num_bytes *= size;
    const std::vector<npy_intp> dims(shape.begin(), shape.end());
    return checked(memory.make(descriptor, static_cast<int>(dims.size()), dims.data(), num_bytes));
  };
  nb::class_<ArrayMemory>(module, "ArrayMemory").def(nb::init<>()).def("empty", empty, nb::arg("shape"), nb::arg("dtype"));
}

}  // namespace envfleet::bindings
