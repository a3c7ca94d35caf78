#include "engine/thread_pool.h"

#include <algorithm>
#include <string>
#include <system_error>

#include "engine/cores.h"
#include "engine/wait.h"

namespace envfleet::engine {

namespace {

constexpr std::uint64_t kOneNotice = std::uint64_t{1} << 32;
constexpr int kWakesPerThread = 2;

int num_threads_of(std::uint64_t notice) { return static_cast<int>(notice & (kOneNotice - 1)); }

// Spins for a change, for a time that adapts to what paid off recently: a training loop that comes back within microseconds
// finds the thread awake, and one that computes for milliseconds finds the core free.
class AdaptiveSpin {
 public:
  explicit AdaptiveSpin(bool allowed) : budget_ns_(allowed ? kLongest : 0), allowed_(allowed) {}

  // Returns true if the word changed meanwhile, and concerns(its value).
  template <class Concerns>
  bool watch(const std::atomic<std::uint64_t>& word, std::uint64_t seen, Concerns&& concerns) {
    if (!allowed_) return false;
    idle_since_ns_ = now_ns();
    // A thread that stopped spinning tries again now and then: the caller's pace may have changed.
    const std::int64_t budget = budget_ns_ > 0 ? budget_ns_ : (++skipped_ % kRetryEvery == 0 ? kLongest : 0);
    if (budget == 0) return false;
    const std::int64_t deadline = idle_since_ns_ + budget;
    do {
      for (int i = 0; i < 32; ++i) {
        const std::uint64_t now = word.load(std::memory_order_acquire);
        if (now != seen && concerns(now)) {
          budget_ns_ = kLongest;
          return true;
        }
        relax_cpu();
      }
    } while (now_ns() < deadline);
    budget_ns_ = budget_ns_ > kShortest ? budget_ns_ / 2 : 0;
    return false;
  }

  // After a wake-up another may follow at once: a trial of more threads would otherwise find them asleep every time and
  // never show their speed. If this one came so soon that a longer spin would have seen it, the next spin is longer.
  void woken() {
    if (!allowed_) return;
    const bool came_soon = now_ns() - idle_since_ns_ < kLongest + kWakeUpTakes;
    budget_ns_ = came_soon ? kLongest : std::max(budget_ns_, kAfterWake);
  }

 private:
  // A loop that copies each batch to a GPU and its actions back is away for about 100 us.
  static constexpr std::int64_t kLongest = 150'000;
  static constexpr std::int64_t kAfterWake = 20'000;
  static constexpr std::int64_t kWakeUpTakes = 15'000;
  static constexpr std::int64_t kShortest = 5'000;
  static constexpr int kRetryEvery = 64;
  std::int64_t budget_ns_;
  const bool allowed_;
  std::int64_t idle_since_ns_ = 0;
  int skipped_ = 0;
};

}  // namespace

ThreadPool::ThreadPool(int max_threads, int affinity_offset, bool may_spin)
    : max_threads_(max_threads),
      affinity_offset_(affinity_offset),
      may_spin_(may_spin),
      shared_(std::make_shared<Shared>(std::max(max_threads, 0))) {}

ThreadPool::~ThreadPool() { stop(-1); }

void ThreadPool::start(const Work& work) {
  while (size() < max_threads_) {
    const int index = size();
    try {
      threads_.emplace_back([shared = shared_, work, index, offset = affinity_offset_, may_spin = may_spin_] {
        if (offset >= 0) pin_this_thread(offset + index);
        run(shared, work, index, may_spin);
      });
    } catch (const std::system_error& error) {
      throw ThreadStartError(
          "thread " + std::to_string(index + 1) + " of " + std::to_string(max_threads_) +
          " could not be started: " + error.code().message() +
          "; pass a smaller num_threads, or raise the limits of threads and memory (ulimit -u, ulimit -v)");
    }
  }
}

void ThreadPool::notify(int num_threads) {
  const std::uint64_t count = shared_->notice.load(std::memory_order_relaxed) & ~(kOneNotice - 1);
  const auto meant_for = static_cast<std::uint64_t>(std::clamp(num_threads, 0, size()));
  shared_->notice.store(count + kOneNotice + meant_for, std::memory_order_seq_cst);
  wake_more();
}

void ThreadPool::wake_more() {
  if (shared_->num_asleep.load(std::memory_order_seq_cst) == 0) return;
  const int limit = num_threads_of(shared_->notice.load(std::memory_order_seq_cst));
  int num_woken = 0;
  for (int i = 0; i < limit && num_woken < kWakesPerThread; ++i) {
    std::atomic<std::uint32_t>& is_asleep = shared_->sleepers[i].is_asleep;
    if (is_asleep.load(std::memory_order_seq_cst) == 0) continue;
    if (is_asleep.exchange(0, std::memory_order_seq_cst) == 0) continue;  // another thread woke it
    shared_->num_asleep.fetch_sub(1, std::memory_order_relaxed);
    wake(is_asleep, 1);
    ++num_woken;
  }
}

bool ThreadPool::stop(std::int64_t timeout_ns) {
  if (threads_.empty()) return true;
  shared_->stopping.store(true, std::memory_order_seq_cst);
  notify(size());
  for (Sleeper& sleeper : shared_->sleepers) {
    if (sleeper.is_asleep.exchange(0, std::memory_order_seq_cst) != 0) wake(sleeper.is_asleep, 1);
  }
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

void ThreadPool::run(const std::shared_ptr<Shared>& shared, const Work& work, int worker_index, bool may_spin) {
  AdaptiveSpin spin(may_spin);
  std::atomic<std::uint32_t>& is_asleep = shared->sleepers[worker_index].is_asleep;
  const auto concerns = [&](std::uint64_t notice) { return worker_index < num_threads_of(notice); };
  for (;;) {
    // Read before the flag: in the other order, this thread would take the notification of a stop() in between for an old
    // one, and sleep forever.
    const std::uint64_t seen = shared->notice.load(std::memory_order_acquire);
    if (shared->stopping.load(std::memory_order_acquire)) break;
    if ((concerns(seen) && work(worker_index)) || spin.watch(shared->notice, seen, concerns)) continue;
    shared->num_asleep.fetch_add(1, std::memory_order_seq_cst);
    is_asleep.store(1, std::memory_order_seq_cst);
    // Checked again after the store: a notify() in between saw no sleeping thread and woke none.
    const std::uint64_t now = shared->notice.load(std::memory_order_seq_cst);
    if (now != seen && concerns(now)) {
      if (is_asleep.exchange(0, std::memory_order_seq_cst) != 0) shared->num_asleep.fetch_sub(1, std::memory_order_relaxed);
      continue;
    }
    while (is_asleep.load(std::memory_order_acquire) != 0) wait_while_equal(is_asleep, 1, -1);
    spin.woken();
  }
  shared->num_left.fetch_add(1, std::memory_order_acq_rel);
  wake_all(shared->num_left);
}

}  // namespace envfleet::engine
