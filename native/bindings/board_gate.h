// BoardGate: who may come in to a board: one thread at a time, none after fork(), none after close().
//
// Thread safety: any thread may call anything here.
// Invariant: whoever enter() or enter_within() let in calls leave().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "caller.h"
#include "forks.h"
#include "wait.h"

namespace envfleet::bindings {

class BoardGate {
 public:
  // Throws when the call has no business inside. With the GIL held.
  void enter() {
    if (is_forked()) [[unlikely]] {
      raise_error("ForkedPoolError",
                  "this pool was made before fork() and its workers belong to the parent; "
                  "expected it to be used there, got a call in the child: make a new pool in the child");
    }
    if (is_busy_.exchange(true, std::memory_order_acquire)) [[unlikely]] {
      raise_error("CallOrderError",
                  "two threads called this pool at once; expected one caller at a time: use a lock or a pool a thread");
    }
    if (is_closed()) [[unlikely]] {
      leave();
      raise_error("PoolClosedError", "this pool is closed; make a new one");
    }
  }
  // False: another thread's call was still inside when the time was over. Without the GIL: that call may want it.
  bool enter_within(std::int64_t timeout_ns) {
    const std::int64_t deadline = engine::now_ns() + timeout_ns;
    while (is_busy_.exchange(true)) {
      if (engine::now_ns() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  void leave() { is_busy_.store(false, std::memory_order_release); }

  // Nobody is let in from here on; who is inside finds out by asking.
  void close() { is_closed_.store(true); }
  bool is_closed() const { return is_closed_.load(); }
  bool is_forked() const { return engine::fork_generation() != fork_generation_; }

 private:
  const std::int64_t fork_generation_ = engine::fork_generation();
  std::atomic<bool> is_busy_{false}, is_closed_{false};
};

}  // namespace envfleet::bindings
