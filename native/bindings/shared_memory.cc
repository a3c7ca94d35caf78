// Memory that processes share: anonymous files, and files mapped as numpy arrays.
#include <fcntl.h>
#include <nanobind/nanobind.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/numpy_arrays.h"
#include "bindings/python_calls.h"

namespace nb = nanobind;

namespace envfleet::bindings {

namespace {

// A file without a name, of which nothing is left when the last process that has it open ends; -1 with errno set.
int open_anonymous_file() {
#if ENVFLEET_HAS_MEMFD
  return memfd_create("envfleet", MFD_CLOEXEC);
#else
  // In memory where there is such a folder, else where temporary files go.
  const char* folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : getenv("TMPDIR");
  std::string name = std::string(folder == nullptr ? "/tmp" : folder) + "/envfleet-XXXXXX";
  const int fd = mkostemp(name.data(), O_CLOEXEC);
  if (fd >= 0) unlink(name.c_str());
  return fd;
#endif
}

// Owns the descriptor of an anonymous file. A C++ class, because in Python a signal handler can raise between a call that
// returns a descriptor and the assignment that stores it, and between closing a descriptor and forgetting its number.
// Thread safety: none; the GIL or its single owner serializes the calls.
class MemoryFile {
 public:
  explicit MemoryFile(std::int64_t num_bytes) {
    fd_ = open_anonymous_file();
    if (fd_ < 0 || ftruncate(fd_, num_bytes) != 0) {
      // Before close(), which may change errno. No destructor runs for an object whose constructor throws.
      PyErr_SetFromErrno(PyExc_OSError);
      close();
      throw nb::python_error();
    }
  }
  ~MemoryFile() { close(); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  // -1 after close(), as for Python's sockets.
  int fileno() const { return fd_; }
  // Passes the descriptor to the caller, who closes it.
  int detach() { return std::exchange(fd_, -1); }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

// The bytes of a file, shared with every process that maps it. Unlike Python's mmap this holds no descriptor.
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
  return checked(wrap_memory(PyArray_DescrFromType(NPY_UINT8), 1, &shape, data, owner.release().ptr()));
}

}  // namespace

void bind_shared_memory(nb::module_& module) {
  module.def("map_file", &map_file, nb::arg("fd"), nb::arg("num_bytes"));
  nb::class_<MemoryFile>(module, "MemoryFile")
      .def(nb::init<std::int64_t>(), nb::arg("num_bytes"))
      .def("fileno", &MemoryFile::fileno)
      .def("detach", &MemoryFile::detach)
      .def("close", &MemoryFile::close);
}

}  // namespace envfleet::bindings
