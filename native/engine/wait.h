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

std::int64_t now_ns();

inline void relax_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace envfleet::engine
