// CallGuard: lets one caller at a time into a pool, none once it closes, and none in a forked child.
//
// A thread enters either by a method (a whole public method of the pool, made of several native calls) or by a single
// native call. Native calls nest in a method of the same thread; nothing nests in a native call. So a second thread is
// refused at any moment of a public method, and so is a signal handler or an env that calls the pool back during one.
//
// Closing takes several stages: begin_close() refuses new calls while the current one continues, cancel() asks the
// current one to end now, and the thread that then enters by try_enter_to_end() ends the pool's workers. A thread that
// cannot enter defers the rest to the current call, whose leave() returns true.
//
// The guard also knows what a call has left behind that the next one must deal with first. Interrupted: an exception of a
// signal handler ended a call before its envs were done, or a method between two of its parts. Unreported: an env raised,
// and the pool has neither reported nor restarted it yet. A native call that is a public method by itself is refused
// meanwhile (the Python layer then decides), a part of a method is not.
//
// Thread safety: any thread may call anything, except that leave() is called by the thread that entered.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace envfleet::engine {

// How many forks lie between the first call of this function and the present process. What owns threads or processes
// compares it, to know whether they stayed with the parent. Thread safety: any thread.
std::int64_t fork_generation();

class CallGuard {
 public:
  enum class Entry { inside, nested, busy, closed, forked };

  // For a whole public method.
  Entry enter_method() { return enter(false); }
  // For a native call that is a public method by itself.
  Entry enter_call() { return enter(true); }
  // For a native call that may be part of a method, in which it nests.
  Entry enter_part() {
    if (!is_mine()) return enter(true);
    if (is_in_call_) return Entry::busy;
    if (is_closing()) return Entry::closed;
    is_in_call_ = true;
    return Entry::nested;
  }
  // Ends the call that got this entry. Returns true if the pool is free now and a deferred close is waiting in
  // take_close().
  bool leave(Entry entry) {
    is_in_call_ = false;
    if (entry == Entry::nested) return false;
    // Release, not a full fence: a thread that defers its close checks once more a moment later.
    owner_.store(std::thread::id(), std::memory_order_release);
    return has_close_.load(std::memory_order_relaxed);
  }
  // Inside a call that returns something which the same thread completes in its next call: until then, other threads are
  // refused. Its next call may be another one: an exception has lost what was returned then.
  void reserve() { reserved_.store(std::this_thread::get_id(), std::memory_order_relaxed); }

  bool is_mine() const { return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  bool is_closing() const { return is_closing_.load(std::memory_order_acquire); }
  bool is_cancelled() const { return is_cancelled_.load(std::memory_order_relaxed); }
  bool is_forked() const { return fork_generation() != fork_generation_; }

  // --- what a call has left behind ---------------------------------------------------------
  //
  // For the thread of the current call, except that any thread may read the two states.

  bool needs_attention() const { return attention_.load(std::memory_order_relaxed) != 0; }
  bool is_interrupted() const { return (attention_.load(std::memory_order_relaxed) & kInterrupted) != 0; }
  void set_interrupted(bool is_on) { set_attention(kInterrupted, is_on); }
  bool has_unreported() const { return (attention_.load(std::memory_order_relaxed) & kUnreported) != 0; }
  void set_unreported(bool is_on) { set_attention(kUnreported, is_on); }
  // Between these, the current method has changed some envs and not yet all: if it ends here, the pool is interrupted.
  // The end of the method ends its parts.
  void begin_parts() { is_between_parts_ = true; }
  void end_parts() { is_between_parts_ = false; }
  bool is_between_parts() const { return is_between_parts_; }

  // --- closing -----------------------------------------------------------------------------

  void begin_close() { is_closing_.store(true); }
  void cancel() { is_cancelled_.store(true); }
  // Returns false if a call, or another close(), is inside.
  bool try_enter_to_end() {
    std::thread::id no_thread;
    if (!owner_.compare_exchange_strong(no_thread, std::this_thread::get_id())) return false;
    is_ending_.store(true);
    return true;
  }
  // Ends what try_enter_to_end() began. If it is not ended, the next close() continues.
  void leave_end(bool is_ended) {
    if (is_ended) is_ended_.store(true);
    is_ending_.store(false);
    owner_.store(std::thread::id());
  }
  bool is_ending() const { return is_ending_.load(); }
  bool is_ended() const { return is_ended_.load(); }
  // Defers a close: the current call runs it when it leaves.
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
  static constexpr std::uint32_t kInterrupted = 1, kUnreported = 2;

  void set_attention(std::uint32_t state, bool is_on) {
    is_on ? attention_.fetch_or(state, std::memory_order_relaxed) : attention_.fetch_and(~state, std::memory_order_relaxed);
  }
  Entry enter(bool is_call) {
    if (is_forked()) [[unlikely]]
      return Entry::forked;
    std::thread::id no_thread;
    if (!owner_.compare_exchange_strong(no_thread, std::this_thread::get_id(), std::memory_order_acquire)) [[unlikely]] {
      return is_closing() ? Entry::closed : Entry::busy;
    }
    // Checked inside: a close() of another thread is over or has not begun.
    if (is_closing()) [[unlikely]] {
      owner_.store(std::thread::id(), std::memory_order_release);
      return Entry::closed;
    }
    const std::thread::id reserved = reserved_.load(std::memory_order_relaxed);
    if (reserved != std::thread::id()) [[unlikely]] {
      if (reserved != std::this_thread::get_id()) {
        owner_.store(std::thread::id(), std::memory_order_release);
        return Entry::busy;
      }
      reserved_.store(std::thread::id(), std::memory_order_relaxed);
    }
    is_in_call_ = is_call;
    return Entry::inside;
  }

  const std::int64_t fork_generation_ = engine::fork_generation();
  std::atomic<std::thread::id> owner_{};
  std::atomic<std::thread::id> reserved_{};             // written by the owner
  bool is_in_call_ = false, is_between_parts_ = false;  // used by the owner
  std::atomic<std::uint32_t> attention_{0};
  std::atomic<bool> is_closing_{false}, is_cancelled_{false}, has_close_{false};
  std::atomic<bool> is_ending_{false}, is_ended_{false};
  std::mutex close_mutex_;
  std::function<void()> close_;
};

}  // namespace envfleet::engine
