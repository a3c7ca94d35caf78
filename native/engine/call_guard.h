// CallGuard: one caller at a time in a pool, none once it closes, none in a forked child.
//
// A thread is inside through a method (a public method of the pool as a whole, made of several native
// calls) or through a native call by itself. Native calls nest in a method of the same thread; nothing
// nests in a native call. So a second thread is turned away at any moment of a public method, and so is
// a signal handler or an env that calls the pool back in the middle of one.
//
// Closing comes in stages: begin_close() turns new calls away while the present one goes on, interrupt()
// asks the present one to end now, and whoever then gets in by try_enter_to_end() ends the pool's workers.
// Who cannot get in leaves the rest to the present call: its leave() says so.
//
// Thread safety: any thread may call anything, except that who entered leaves.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "forks.h"

namespace envfleet::engine {

class CallGuard {
 public:
  enum class Entry { inside, nested, busy, closed, forked };

  // Of a public method.
  Entry enter_method() { return enter(false); }
  // Of a native call that is a public method by itself.
  Entry enter_call() { return enter(true); }
  // Of a native call that may be part of a method: nested then.
  Entry enter_part() {
    if (!is_mine()) return enter(true);
    if (is_in_call_) return Entry::busy;
    if (is_closing()) return Entry::closed;
    is_in_call_ = true;
    return Entry::nested;
  }
  // Ends what gave this entry. True: the pool is free now, and close() is to be continued by take_close().
  bool leave(Entry entry) {
    is_in_call_ = false;
    if (entry == Entry::nested) return false;
    // Release, not a full fence: who leaves a close behind looks once more a moment later.
    owner_.store(std::thread::id(), std::memory_order_release);
    return has_close_.load(std::memory_order_relaxed);
  }
  // Inside a native call: lets code of the pool's own make nested calls, and back.
  void set_in_call(bool is_in_call) { is_in_call_ = is_in_call; }

  bool is_mine() const { return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  bool is_closing() const { return is_closing_.load(std::memory_order_acquire); }
  bool is_interrupted() const { return is_interrupted_.load(std::memory_order_relaxed); }
  bool is_forked() const { return fork_generation() != fork_generation_; }

  // --- closing -----------------------------------------------------------------------------

  void begin_close() { is_closing_.store(true); }
  void interrupt() { is_interrupted_.store(true); }
  // False: a call, or another close(), is inside.
  bool try_enter_to_end() {
    std::thread::id nobody;
    if (!owner_.compare_exchange_strong(nobody, std::this_thread::get_id())) return false;
    is_ending_.store(true);
    return true;
  }
  // Ends what try_enter_to_end() began; not ended: the next close() goes on with it.
  void leave_end(bool is_ended) {
    if (is_ended) is_ended_.store(true);
    is_ending_.store(false);
    owner_.store(std::thread::id());
  }
  bool is_ending() const { return is_ending_.load(); }
  bool is_ended() const { return is_ended_.load(); }
  // For the present call to run when it leaves.
  void put_close(std::function<void()> close) {
    std::lock_guard lock(close_mutex_);
    close_ = std::move(close);
    has_close_.store(true);
  }
  std::function<void()> take_close() {
    std::lock_guard lock(close_mutex_);
    has_close_.store(false);
    return std::exchange(close_, nullptr);
  }

 private:
  Entry enter(bool is_call) {
    if (is_forked()) [[unlikely]]
      return Entry::forked;
    std::thread::id nobody;
    if (!owner_.compare_exchange_strong(nobody, std::this_thread::get_id(), std::memory_order_acquire)) [[unlikely]] {
      return is_closing() ? Entry::closed : Entry::busy;
    }
    // Asked inside: close() from another thread is over or has not begun.
    if (is_closing()) [[unlikely]] {
      owner_.store(std::thread::id(), std::memory_order_release);
      return Entry::closed;
    }
    is_in_call_ = is_call;
    return Entry::inside;
  }

  const std::int64_t fork_generation_ = engine::fork_generation();
  std::atomic<std::thread::id> owner_{};
  bool is_in_call_ = false;  // the owner's
  std::atomic<bool> is_closing_{false}, is_interrupted_{false}, has_close_{false};
  std::atomic<bool> is_ending_{false}, is_ended_{false};
  std::mutex close_mutex_;
  std::function<void()> close_;
};

}  // namespace envfleet::engine
