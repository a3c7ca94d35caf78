#include "engine/wait.h"

#include <time.h>

#include <chrono>
#include <climits>

#if ENVFLEET_HAS_FUTEX
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#endif

namespace envfleet::engine {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

#if ENVFLEET_HAS_FUTEX

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

void wait_while_equal(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t timeout_ns) {
  timespec limit{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, timeout_ns < 0 ? nullptr : &limit, nullptr, 0);
}

void wake(std::atomic<std::uint32_t>& word, int waiters) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, waiters, nullptr, nullptr, 0);
}

void wait_shared_while_equal(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t timeout_ns) {
  timespec limit{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, timeout_ns < 0 ? nullptr : &limit, nullptr, 0);
}

void wake_shared(std::atomic<std::uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

#else

namespace {

struct ParkingPlace {
  std::mutex mutex;
  std::condition_variable woken;
};

// Words share a few condition variables by address: a wake-up may reach another waiter, which checks and waits again.
ParkingPlace& place_of(const void* word) {
  // Never destroyed: at exit a thread may still wait on one.
  static auto& places = *new std::array<ParkingPlace, 64>;
  return places[(reinterpret_cast<std::uintptr_t>(word) >> 6) % places.size()];
}

}  // namespace

void wait_while_equal(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t timeout_ns) {
  ParkingPlace& place = place_of(&word);
  std::unique_lock lock(place.mutex);
  const auto changed = [&] { return word.load() != expected; };
  if (timeout_ns < 0) {
    place.woken.wait(lock, changed);
  } else {
    place.woken.wait_for(lock, std::chrono::nanoseconds(timeout_ns), changed);
  }
}

void wake(std::atomic<std::uint32_t>& word, int) {
  ParkingPlace& place = place_of(&word);
  // Empty on purpose: a waiter between its check and its wait holds the mutex.
  {
    std::lock_guard lock(place.mutex);
  }
  place.woken.notify_all();
}

// A condition variable of one process cannot be reached from another: polls. The naps grow with the time waited, so that
// an idle worker takes little of a core, and a short wait is not prolonged much.
void wait_shared_while_equal(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t timeout_ns) {
  constexpr std::int64_t kShortestNap = 20'000, kLongestNap = 1'000'000;
  const std::int64_t start = now_ns();
  while (word.load() == expected) {
    const std::int64_t waited = now_ns() - start;
    std::int64_t nap = std::clamp(waited / 8, kShortestNap, kLongestNap);
    if (timeout_ns >= 0) nap = std::min(nap, timeout_ns - waited);
    if (nap <= 0) return;
    const timespec duration{nap / 1'000'000'000, nap % 1'000'000'000};
    // A signal: the caller may have to handle it. std::this_thread::sleep_for would sleep on.
    if (nanosleep(&duration, nullptr) != 0) return;
  }
}

void wake_shared(std::atomic<std::uint32_t>&) {}

#endif

void wake_all(std::atomic<std::uint32_t>& word) { wake(word, INT_MAX); }

}  // namespace envfleet::engine
