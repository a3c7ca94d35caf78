#include "shm/worker_queue.h"

#include <atomic>
#include <bit>
#include <thread>

#include "engine/cores.h"
#include "shm/waking.h"

namespace envfleet::shm {

namespace {

constexpr std::int64_t kWorkerSpinNs = 150'000;
constexpr std::int32_t kMaxWokenPerWorker = 4;

}  // namespace

void WorkerQueue::sleep(std::int64_t start_ns) {
  Header& header = this->header();
  const auto has_work = [&] {
    return state_->request_head.load(std::memory_order_seq_cst) != tail_ || header.stop.load(std::memory_order_seq_cst) != 0;
  };
  if (!spin_until(has_work, start_ns)) {
    const WorkerSet asleep = layout_.asleep(base_);
    state_->core.store(engine::this_core(), std::memory_order_relaxed);
    for (;;) {
      const std::uint32_t seen = state_->wakeups.load(std::memory_order_seq_cst);
      asleep.add(worker_);
      // Checked after the futex was read: a request from here on changes it, and the wait does not begin.
      if (has_work()) break;
      engine::wait_shared_while_equal(state_->wakeups, seen, -1);
    }
    asleep.remove(worker_);
    layout_.to_wake(base_).remove(worker_);
  }
  wake_sleepers(layout_, base_, kMaxWokenPerWorker);
}

// An idle core takes long to wake up, so as many workers as there are cores spin for a while first. They yield at once
// to any other thread that wants the core: the caller, or a worker that was scheduled on the same core.
template <class HasWork>
bool WorkerQueue::spin_until(HasWork&& has_work, std::int64_t start_ns) {
  if (max_spinners_ <= 0) return false;
  std::atomic<std::uint64_t>& spinners = header().spinners;
  const std::uint64_t own = spin_bit_of(worker_);
  bool is_done = false;
  if (std::popcount(spinners.fetch_or(own)) < max_spinners_) {
    do {
      for (int i = 0; i < 32 && !is_done; ++i) {
        is_done = has_work();
        engine::relax_cpu();
      }
      if (is_done) break;
      std::this_thread::yield();
    } while (engine::now_ns() - start_ns < kWorkerSpinNs);
  }
  spinners.fetch_and(~own);
  return is_done;
}

}  // namespace envfleet::shm
