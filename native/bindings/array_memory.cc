#include "array_memory.h"

#include <cstdlib>

namespace envfleet::bindings {

namespace {

constexpr const char* kCapsuleName = "envfleet.rows";
constexpr std::int64_t kLarge = 128 * 1024;  // from here on malloc takes fresh pages each time
constexpr std::size_t kMaxFree = 4;
constexpr std::size_t kAlignment = 64;

}  // namespace

ArrayMemory::Shelf::~Shelf() {
  for (void* data : free) std::free(data);
}

PyObject* ArrayMemory::make(PyArray_Descr* descriptor, int ndim, const npy_intp* shape, std::int64_t num_bytes) {
  if (num_bytes < kLarge) return PyArray_Empty(ndim, shape, descriptor, 0);
  void* data = nullptr;
  {
    std::lock_guard lock(shelf_->mutex);
    if (shelf_->num_bytes == num_bytes && !shelf_->free.empty()) {
      data = shelf_->free.back();
      shelf_->free.pop_back();
    }
  }
  if (data == nullptr) {
    const auto size = (static_cast<std::size_t>(num_bytes) + kAlignment - 1) / kAlignment * kAlignment;
    data = std::aligned_alloc(kAlignment, size);
  }
  if (data == nullptr) {
    Py_DECREF(descriptor);
    return PyErr_NoMemory();
  }
  PyObject* capsule = PyCapsule_New(new Loan{shelf_, data, num_bytes}, kCapsuleName, give_back);
  if (capsule == nullptr) {
    Py_DECREF(descriptor);
    return nullptr;
  }
  PyObject* array = PyArray_NewFromDescr(&PyArray_Type, descriptor, ndim, shape, nullptr, data, NPY_ARRAY_CARRAY, nullptr);
  if (array == nullptr || PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array), capsule) < 0) {
    Py_XDECREF(array);
    if (array == nullptr) Py_DECREF(capsule);
    return nullptr;
  }
  return array;
}

void ArrayMemory::give_back(PyObject* capsule) {
  auto* loan = static_cast<Loan*>(PyCapsule_GetPointer(capsule, kCapsuleName));
  {
    std::lock_guard lock(loan->shelf->mutex);
    Shelf& shelf = *loan->shelf;
    if (shelf.num_bytes != loan->num_bytes) {  // batches of another size are usual from now on
      for (void* data : shelf.free) std::free(data);
      shelf.free.clear();
      shelf.num_bytes = loan->num_bytes;
    }
    if (shelf.free.size() < kMaxFree) {
      shelf.free.push_back(loan->data);
      loan->data = nullptr;
    }
  }
  std::free(loan->data);
  delete loan;
}

}  // namespace envfleet::bindings
