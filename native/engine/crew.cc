#include "crew.h"

#include <algorithm>

#include "cores.h"
#include "wait.h"

namespace envfleet::engine {

namespace {

// Watches for a change for a while that follows what paid off lately: a training loop
// that comes back in microseconds finds the thread awake, one that computes for
// milliseconds finds the core free.
class AdaptiveSpin {
 public:
  explicit AdaptiveSpin(bool allowed) : budget_ns_(allowed ? kLongest : 0), allowed_(allowed) {}

  // True: the word changed while watched.
  bool watch(const std::atomic<std::uint32_t>& word, std::uint32_t seen) {
    if (!allowed_) return false;
    // A thread that gave up looks again now and then: the caller's rhythm may have changed.
    const std::int64_t budget = budget_ns_ > 0 ? budget_ns_ : (++skipped_ % kRetryEvery == 0 ? kLongest : 0);
    if (budget == 0) return false;
    const std::int64_t deadline = now_ns() + budget;
    do {
      for (int i = 0; i < 32; ++i) {
        if (word.load(std::memory_order_acquire) != seen) {
          budget_ns_ = kLongest;
          return true;
        }
        relax_cpu();
      }
    } while (now_ns() < deadline);
    budget_ns_ = budget_ns_ > kShortest ? budget_ns_ / 2 : 0;
    return false;
  }

  // A caller who rings once may ring again at once: a trial of the crew would otherwise find every
  // thread asleep every time, and never show what it can do.
  void woken() { budget_ns_ = std::max(budget_ns_, kAfterWake); }

 private:
  static constexpr std::int64_t kLongest = 50'000;
  static constexpr std::int64_t kAfterWake = 20'000;
  static constexpr std::int64_t kShortest = 5'000;
  static constexpr int kRetryEvery = 64;
  std::int64_t budget_ns_;
  const bool allowed_;
  int skipped_ = 0;
};

}  // namespace

Crew::Crew(int affinity_offset, bool may_spin) : affinity_offset_(affinity_offset), may_spin_(may_spin) {}

Crew::~Crew() { stop(-1); }

void Crew::start(int count, const Work& work) {
  while (size() < count) {
    const int index = size();
    threads_.emplace_back([shared = shared_, work, index, offset = affinity_offset_, may_spin = may_spin_] {
      if (offset >= 0) pin_this_thread(offset + index);
      run(shared, work, index, may_spin);
    });
  }
}

void Crew::summon(int workers) {
  shared_->bell.fetch_add(1, std::memory_order_seq_cst);
  if (shared_->sleepers.load(std::memory_order_seq_cst) > 0) wake(shared_->bell, workers);
}

bool Crew::stop(std::int64_t timeout_ns) {
  if (threads_.empty()) return true;
  shared_->stopping.store(true, std::memory_order_seq_cst);
  shared_->bell.fetch_add(1, std::memory_order_seq_cst);
  wake_all(shared_->bell);
  const std::int64_t deadline = now_ns() + timeout_ns;
  const auto all = static_cast<std::uint32_t>(threads_.size());
  for (std::uint32_t left = 0; (left = shared_->num_left.load(std::memory_order_acquire)) < all;) {
    const std::int64_t rest = timeout_ns < 0 ? -1 : deadline - now_ns();
    if (timeout_ns >= 0 && rest <= 0) break;
    wait_while_equal(shared_->num_left, left, rest);
  }
  const bool all_left = shared_->num_left.load(std::memory_order_acquire) == all;
  for (std::thread& thread : threads_) {
    if (all_left) {
      thread.join();
    } else {
      thread.detach();
    }
  }
  threads_.clear();
  return all_left;
}

void Crew::run(const std::shared_ptr<Shared>& shared, const Work& work, int worker_index, bool may_spin) {
  AdaptiveSpin spin(may_spin);
  for (;;) {
    // The bell before the flag: the other way round a stop() in between rings a bell that this
    // thread then takes for an old one, and it sleeps through its dismissal for ever.
    const std::uint32_t seen = shared->bell.load(std::memory_order_acquire);
    if (shared->stopping.load(std::memory_order_acquire)) break;
    if (work(worker_index) || spin.watch(shared->bell, seen)) continue;
    shared->sleepers.fetch_add(1, std::memory_order_seq_cst);
    // Looked at again after the count: a summon() in between saw no sleeper and woke nobody.
    if (shared->bell.load(std::memory_order_seq_cst) == seen) wait_while_equal(shared->bell, seen, -1);
    shared->sleepers.fetch_sub(1, std::memory_order_seq_cst);
    spin.woken();
  }
  shared->num_left.fetch_add(1, std::memory_order_acq_rel);
  wake_all(shared->num_left);
}

}  // namespace envfleet::engine
