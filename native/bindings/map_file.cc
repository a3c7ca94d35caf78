#include "map_file.h"

#include <sys/mman.h>

#include "numpy_api.h"

namespace nb = nanobind;

namespace envfleet::bindings {

nb::object map_file(int fd, std::int64_t num_bytes) {
  struct Mapping {
    void* data;
    std::size_t size;
  };
  const auto size = static_cast<std::size_t>(num_bytes);
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  nb::capsule owner(new Mapping{data, size}, [](void* raw) noexcept {
    auto* mapping = static_cast<Mapping*>(raw);
    munmap(mapping->data, mapping->size);
    delete mapping;
  });
  npy_intp shape = num_bytes;
  PyObject* array = PyArray_SimpleNewFromData(1, &shape, NPY_UINT8, data);
  if (array == nullptr) throw nb::python_error();
  nb::object held = nb::steal(array);
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array), owner.release().ptr()) < 0) throw nb::python_error();
  return held;
}

}  // namespace envfleet::bindings
