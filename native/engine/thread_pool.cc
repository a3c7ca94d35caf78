#include "engine/thread_pool.h"

#include <algorithm>
#include <string>
#include <system_error>

#include "engine/adaptive_spin.h"
#include "engine/cores.h"
#include "engine/wait.h"

namespace envfleet::engine {

namespace {

constexpr std::uint64_t kOneNotice = std::uint64_t{1} << 32;
constexpr int kWakesPerThread = 2;

int num_threads_of(std::uint64_t notice) { return static_cast<int>(notice & (kOneNotice - 1)); }

// Many training loops send the next batch within this time.
constexpr std::int64_t kYieldsAfterNs = 150'000;

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
  AdaptiveSpin spin(may_spin, kYieldsAfterNs);
  std::atomic<std::uint32_t>& is_asleep = shared->sleepers[worker_index].is_asleep;
  const auto concerns = [&](std::uint64_t notice) { return worker_index < num_threads_of(notice); };
  for (;;) {
    // Read before the flag: in the other order, this thread would take the notification of a stop() in between for an old
    // one, and sleep forever.
    const std::uint64_t seen = shared->notice.load(std::memory_order_acquire);
    if (shared->stopping.load(std::memory_order_acquire)) break;
    const auto is_notified = [&] {
      const std::uint64_t now = shared->notice.load(std::memory_order_acquire);
      return now != seen && concerns(now);
    };
    if ((concerns(seen) && work(worker_index)) || spin.watch(is_notified, [] { return true; })) continue;
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
