// PageLock: keeps a range of host memory page-locked for CUDA while it exists.
//
// A copy between page-locked memory and a GPU runs asynchronously and at the speed of the bus. The driver library is the
// one that torch or jax has loaded into the process already; without one, nothing is locked and nothing is loaded.
//
// Thread safety: none per object. Objects may be destroyed on any thread: the driver's context is made current for it.
// Invariant: memory is unlocked before it is freed, so the owner of the memory owns the lock too.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace envfleet::engine {

// The driver's functions, or those of a test. Both return 0 on success.
struct PageLockFunctions {
  int (*lock)(void* data, std::size_t num_bytes, void** context);
  int (*unlock)(void* data, void* context);
};

// Those of the CUDA driver that this process has loaded; null without one.
const PageLockFunctions* cuda_page_lock_functions();

// Starts a copy to device memory on a stream of the driver's; false if it could not be started. From page-locked memory
// it returns at once, and the memory must stay as it is until the stream has got there.
bool copy_to_device(std::uintptr_t target, const void* source, std::size_t num_bytes, void* stream);

class PageLock {
 public:
  PageLock() = default;
  ~PageLock();
  PageLock(const PageLock&) = delete;
  PageLock& operator=(const PageLock&) = delete;

  // Whether the range is locked now. A second call returns what the first one reached: a range that the driver refused
  // (a limit on locked memory, no context in this thread) is not tried again for every batch.
  bool lock(void* data, std::size_t num_bytes, const PageLockFunctions* functions = cuda_page_lock_functions());
  bool is_locked() const { return functions_ != nullptr; }

 private:
  const PageLockFunctions* functions_ = nullptr;  // set while locked
  void* data_ = nullptr;
  void* context_ = nullptr;
  pid_t process_ = 0;
  bool was_tried_ = false;
};

}  // namespace envfleet::engine
