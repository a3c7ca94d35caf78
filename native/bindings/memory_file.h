// MemoryFile: owns the descriptor of an anonymous file that processes share.
// A class of C++, because a Python signal handler can raise between a call that returns a descriptor and the
// assignment that keeps it, and between closing a descriptor and forgetting its number.
// Thread safety: none; the GIL or its one owner serializes the calls.
#pragma once

#include <cstdint>

namespace envfleet::bindings {

class MemoryFile {
 public:
  // Throws nb::python_error with an OSError.
  explicit MemoryFile(std::int64_t num_bytes);
  ~MemoryFile() { close(); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  // -1 after close(), as with Python's sockets.
  int fileno() const { return fd_; }
  // Gives the descriptor to the caller, who closes it.
  int detach();
  void close();

 private:
  int fd_ = -1;
};

}  // namespace envfleet::bindings
