#include "shm/worker_queue.h"

#include <atomic>

#include "engine/cores.h"
#include "shm/waking.h"

namespace envfleet::shm {

namespace {

constexpr std::int32_t kMaxWokenPerWorker = 4;

}  // namespace

void WorkerQueue::sleep() {
  Header& header = this->header();
  const auto has_work = [&] {
    return state_->request_head.load(std::memory_order_seq_cst) != tail_ || header.stop.load(std::memory_order_seq_cst) != 0;
  };
  if (!spin_.watch(has_work, [&] { return may_spin(); })) {
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
    spin_.woken();
  }
  wake_sleepers(layout_, base_, kMaxWokenPerWorker);
}

}  // namespace envfleet::shm
