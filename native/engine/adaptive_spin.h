// AdaptiveSpin: how long an idle thread watches for work before it sleeps, by what paid off recently. A training loop that
// comes back within a millisecond finds the thread awake, and one that computes for longer finds the core free.
//
// A sleeping core takes long to wake up, and its caches may be cold: on a virtual machine with 16 cores, a step of 65,536
// CartPoles takes 175 us instead of 117 us if the threads fell asleep before it. But a thread that spins takes time from
// others that want its core. So it yields. If another thread took the core meanwhile, it sleeps, and its next spins are
// brief.
//
// Thread safety: one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>

#include "engine/wait.h"

namespace envfleet::engine {

// The decisions, given the time: separate from the clock, so that tests can do without one.
class SpinBudget {
 public:
  // The thread is idle from now on. Returns for how long it may spin; 0: it sleeps at once.
  std::int64_t begin(std::int64_t now_ns) {
    idle_since_ns_ = now_ns;
    // A thread that stopped spinning tries again now and then: the caller's pace may have changed.
    const std::int64_t budget = budget_ns_ > 0 ? budget_ns_ : (++num_skipped_ % kRetryEvery == 0 ? kLongest : 0);
    return now_ns < core_is_shared_until_ns_ ? std::min(budget, kBrief) : budget;
  }
  void found_work() { budget_ns_ = kLongest; }
  // Also if it was not allowed to spin.
  void found_nothing() { budget_ns_ = budget_ns_ > kShortest ? budget_ns_ / 2 : 0; }
  void lost_core(std::int64_t now_ns) { core_is_shared_until_ns_ = now_ns + kSharedFor; }
  // After a wake-up another may follow at once: a trial of more threads would otherwise find them asleep every time and
  // never show their speed. If this one came so soon that a longer spin would have seen it, the next spin is longer.
  void woken(std::int64_t now_ns) {
    const bool came_soon = now_ns - idle_since_ns_ < kLongest + kWakeUpTakes;
    budget_ns_ = came_soon ? kLongest : std::max(budget_ns_, kBrief);
  }

  static constexpr std::int64_t kLongest = 1'000'000;
  static constexpr std::int64_t kBrief = 20'000;
  static constexpr std::int64_t kSharedFor = 50'000'000;
  static constexpr int kRetryEvery = 64;

 private:
  static constexpr std::int64_t kShortest = 5'000;
  static constexpr std::int64_t kWakeUpTakes = 15'000;
  std::int64_t budget_ns_ = kLongest;
  std::int64_t idle_since_ns_ = 0;
  std::int64_t core_is_shared_until_ns_ = 0;
  unsigned num_skipped_ = 0;
};

class AdaptiveSpin {
 public:
  // yields_after_ns: a spin yields from then on; before, it makes no system call.
  AdaptiveSpin(bool allowed, std::int64_t yields_after_ns) : allowed_(allowed), yields_after_ns_(yields_after_ns) {}

  // Returns true as soon as has_work(), false when it is time to sleep. may_go_on() is asked every microsecond or so.
  template <class HasWork, class MayGoOn>
  bool watch(HasWork&& has_work, MayGoOn&& may_go_on) {
    if (!allowed_) return false;
    const std::int64_t start = now_ns();
    const std::int64_t end = start + budget_.begin(start);
    for (std::int64_t now = start; now < end && may_go_on();) {
      for (int i = 0; i < 32; ++i) {
        if (has_work()) {
          budget_.found_work();
          return true;
        }
        relax_cpu();
      }
      now = now_ns();
      if (now - start < yields_after_ns_) continue;
      std::this_thread::yield();
      const std::int64_t back = now_ns();
      if (back - now > kLongestYield) {
        budget_.lost_core(back);
        return has_work();
      }
      now = back;
    }
    budget_.found_nothing();
    return false;
  }

  void woken() {
    if (allowed_) budget_.woken(now_ns());
  }

 private:
  static constexpr std::int64_t kLongestYield = 30'000;  // if no other thread runs meanwhile; about 1 us is usual

  bool allowed_;
  std::int64_t yields_after_ns_;
  SpinBudget budget_;
};

}  // namespace envfleet::engine
