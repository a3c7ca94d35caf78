#include "memory_file.h"

#include <nanobind/nanobind.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

namespace nb = nanobind;

namespace envfleet::bindings {

MemoryFile::MemoryFile(std::int64_t num_bytes) {
  fd_ = memfd_create("envfleet", MFD_CLOEXEC);
  if (fd_ < 0 || ftruncate(fd_, num_bytes) != 0) {
    // Before close(), which may change errno. No destructor runs for an object whose constructor throws.
    PyErr_SetFromErrno(PyExc_OSError);
    close();
    throw nb::python_error();
  }
}

int MemoryFile::detach() { return std::exchange(fd_, -1); }

void MemoryFile::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

}  // namespace envfleet::bindings
