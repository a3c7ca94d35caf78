// Waiting on a 32-bit word: futex on Linux, a parked condition variable elsewhere.
//
// Thread safety: any thread may wait on or wake any word.
// Invariant: a change of the word followed by wake() is never missed by a waiter that
// saw the old value.
#pragma once

#include <atomic>
#include <cstdint>

namespace envfleet::engine {

// Sleeps while word == expected, until woken or timeout_ns passed (negative: no limit).
// May return early; callers loop.
void wait_while_equal(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t timeout_ns);
void wake(std::atomic<std::uint32_t>& word, int waiters);
void wake_all(std::atomic<std::uint32_t>& word);

// The same for a word in a mapping that processes share. Also returns when a signal came.
// Of those who wait on one word, only such wake up as share a bit with the waker.
void wait_shared_while_equal(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t timeout_ns,
                             std::uint32_t bits = ~0u);
void wake_shared(std::atomic<std::uint32_t>& word, std::uint32_t bits = ~0u);

std::int64_t now_ns();

// Waiter: how the caller waits for what other threads bring about. They change what ready() reads
// (seq_cst), then tell(). A short spin first, where the cores allow it.
//
// Thread safety: wait_until() from one thread, tell() from any.
class Waiter {
 public:
  // False: not ready within timeout_ns (negative: no limit).
  template <class Ready>
  bool wait_until(Ready&& ready, std::int64_t timeout_ns, bool may_spin);
  // For those who brought it about.
  void tell() {
    news_.fetch_add(1, std::memory_order_seq_cst);
    if (waits_.load(std::memory_order_seq_cst)) wake_all(news_);
  }

 private:
  static constexpr std::int64_t kSpin = 30'000;
  alignas(64) std::atomic<std::uint32_t> news_{0};
  std::atomic<bool> waits_{false};
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
  waits_.store(true, std::memory_order_seq_cst);
  bool is_ready = false;
  for (;;) {
    const std::uint32_t seen = news_.load(std::memory_order_seq_cst);
    // After the word was read: what happens from here on changes it, and the sleep below ends at once.
    is_ready = ready();
    const std::int64_t rest = timeout_ns < 0 ? -1 : timeout_ns - (now_ns() - start);
    if (is_ready || (timeout_ns >= 0 && rest <= 0)) break;
    wait_while_equal(news_, seen, rest);
  }
  waits_.store(false, std::memory_order_relaxed);
  return is_ready;
}

}  // namespace envfleet::engine
