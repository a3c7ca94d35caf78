// CUDA without a dependency on it: page-locked memory, and copies from it to a GPU.
//
// Uses the driver library that torch or jax has loaded into the process already. Without one nothing is loaded, and
// everything here says that it cannot be done.
//
// Thread safety: one thread at a time per object. Objects may be destroyed on any thread: the driver's context is made
// current for that.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace envfleet::cuda {

// The driver's functions, or those of a test. Both return 0 on success.
struct PageLockFunctions {
  int (*lock)(void* data, std::size_t num_bytes, void** context);
  int (*unlock)(void* data, void* context);
};

// Those of the CUDA driver that this process has loaded; null without one.
const PageLockFunctions* cuda_page_lock_functions();

// Keeps a range of host memory page-locked while it exists.
// Invariant: memory is unlocked before it is freed, so the owner of the memory owns the lock too.
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

// Copies from host to device memory, on a stream of their own or on the user's.
//
// On a stream of their own, copies run beside the user's work; events order the two. The device memory of the next batch is
// allocated ahead, on the user's stream; mark_allocated() says when. A copy into it waits for what that stream did before
// then, not for what it does now.
class UploadStream {
 public:
  struct Copy {
    std::uintptr_t target;
    const void* source;
    std::size_t num_bytes;
  };

  // Throws std::runtime_error without a driver, or without a context in this thread.
  UploadStream();
  // Waits for the copies that were started.
  ~UploadStream();
  UploadStream(const UploadStream&) = delete;
  UploadStream& operator=(const UploadStream&) = delete;

  void mark_allocated(void* user_stream);
  // Starts the copies; what the user's stream does from now on comes after them. on_user_stream: after all that this stream
  // still has to do, too; faster if that is nothing. Returns the number of the upload: 1, 2, 3 ... The sources must stay as
  // they are until num_done() has reached it. Throws std::runtime_error when the driver refuses.
  std::int64_t start(void* user_stream, const std::vector<Copy>& copies, bool on_user_stream);
  // How many of the first uploads are done.
  std::int64_t num_done();
  // Blocks until this upload and those before it are done.
  void wait(std::int64_t number);
  // Blocks until the user's stream has done what it has to do now. Gives its core up if that takes long: for a thread that
  // waits while envs run, which need the cores.
  void wait_for_stream(void* user_stream);

 private:
  void* stream_ = nullptr;
  void* context_ = nullptr;
  void* allocated_ = nullptr;  // an event of the user's stream
  void* reached_ = nullptr;    // likewise, of wait_for_stream()
  std::deque<void*> pending_;  // events of uploads num_done_ + 1 ...
  std::vector<void*> unused_;  // events to be used again
  std::int64_t num_done_ = 0;
  pid_t process_;
};

// Starts a copy from device memory on this stream; it is done when the stream is. Throws std::runtime_error.
void copy_to_host(void* stream, void* target, std::uintptr_t source, std::size_t num_bytes);

// Blocks until a stream has done all its work, without giving the core up. Throws std::runtime_error when that fails.
void synchronize_stream(void* stream);

}  // namespace envfleet::cuda
