#include "shm/worker_queue.h"

#include <atomic>
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

// An idle core takes long to wake up. A spinning worker yields at once to any other thread that wants the core: the caller,
// or a worker that was scheduled on the same core.
template <class HasWork>
bool WorkerQueue::spin_until(HasWork&& has_work, std::int64_t start_ns) const {
  while (may_spin() && engine::now_ns() - start_ns < kWorkerSpinNs) {
    for (int i = 0; i < 32; ++i) {
      if (has_work()) return true;
      engine::relax_cpu();
    }
    std::this_thread::yield();
  }
  return false;
}

}  // namespace envfleet::shm
