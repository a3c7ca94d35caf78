// Waiting on a 32-bit word: a futex on Linux; elsewhere a condition variable, and polling between processes.
//
// Thread safety: any thread may wait on or wake any word.
// Invariant: a waiter that saw the old value never misses a change of the word that is followed by wake().
#pragma once

#include <atomic>
#include <cstdint>

namespace envfleet::engine {

// Sleeps while word == expected, until woken or until timeout_ns has passed (negative: no limit). May return early; callers
// loop.
void wait_while_equal(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t timeout_ns);
void wake(std::atomic<std::uint32_t>& word, int waiters);
void wake_all(std::atomic<std::uint32_t>& word);

// The same for a word in shared memory. Also returns when a signal arrives.
void wait_shared_while_equal(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t timeout_ns);
void wake_shared(std::atomic<std::uint32_t>& word);

std::int64_t now_ns();

// Waiter: lets the caller wait for a condition that other threads bring about. They change what ready() reads (seq_cst),
// then call notify(). The caller spins for a short time first, if there are enough cores.
//
// Thread safety: wait_until() from one thread, notify() from any.
class Waiter {
 public:
  // Returns false if not ready within timeout_ns (negative: no limit).
  template <class Ready>
  bool wait_until(Ready&& ready, std::int64_t timeout_ns, bool may_spin);
  void notify() {
    wakeups_.fetch_add(1, std::memory_order_seq_cst);
    if (is_waiting_.load(std::memory_order_seq_cst)) wake_all(wakeups_);
  }

 private:
  static constexpr std::int64_t kSpin = 30'000;
  alignas(64) std::atomic<std::uint32_t> wakeups_{0};
  std::atomic<bool> is_waiting_{false};
};

inline void relax_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class Ready>
bool Waiter::wait_until(Ready&& ready, std::int64_t timeout_ns, bool may_spin) {
  if (ready()) return true;
  const std::int64_t start = now_ns();
  if (may_spin) {
    const std::int64_t limit = timeout_ns < 0 || timeout_ns > kSpin ? kSpin : timeout_ns;
    do {
      for (int i = 0; i < 32; ++i) {
        if (ready()) return true;
        relax_cpu();
      }
    } while (now_ns() - start < limit);
  }
  is_waiting_.store(true, std::memory_order_seq_cst);
  bool is_ready = false;
  for (;;) {
    const std::uint32_t seen = wakeups_.load(std::memory_order_seq_cst);
    // Checked after the word was read: a notify() from here on changes it, and the sleep below ends at once.
    is_ready = ready();
    const std::int64_t rest = timeout_ns < 0 ? -1 : timeout_ns - (now_ns() - start);
    if (is_ready || (timeout_ns >= 0 && rest <= 0)) break;
    wait_while_equal(wakeups_, seen, rest);
  }
  is_waiting_.store(false, std::memory_order_relaxed);
  return is_ready;
}

}  // namespace envfleet::engine
