// WorkerQueue: a worker's side of the shared memory: takes requests, sleeps while there are none, reports finished rows.
//
// Thread safety: one thread at a time; the caller uses the other side (caller_queue.h) concurrently.
// Invariant: every request that was taken is finished exactly once, whatever its row contains.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/adaptive_spin.h"
#include "shm/segment.h"

namespace envfleet::shm {

class WorkerQueue {
 public:
  // num_cores: see may_spin(); 0: never.
  WorkerQueue(std::byte* base, SegmentLayout layout, std::int32_t worker, std::int32_t num_cores)
      : base_(base),
        layout_(layout),
        worker_(worker),
        num_cores_(num_cores),
        state_(&layout_.worker(base, worker)),
        // It yields from the beginning: the caller, or a worker that was scheduled on the same core, may be about to run.
        spin_(num_cores > 0, 0),
        tail_(state_->request_tail.load()),
        done_(state_->done_head.load()) {}

  // This worker's envs are those from first_env() up to, but excluding, end_env().
  std::int32_t first_env() const { return layout_.first_env(worker_); }
  std::int32_t end_env() const { return layout_.first_env(worker_ + 1); }

  Header& header() const { return layout_.header(base_); }
  WorkerState& state() const { return *state_; }
  Slot& slot(std::int32_t env_id) const { return layout_.slot(base_, env_id); }

  bool is_stopped() const { return header().stop.load(std::memory_order_acquire) != 0; }
  bool has_request() const { return state_->request_head.load(std::memory_order_acquire) != tail_; }
  // The env of the next request. Only when has_request().
  std::int32_t take_request() {
    const std::int32_t env_id = layout_.requests(base_, worker_)[tail_ & (layout_.ring_size - 1)];
    ++tail_;
    state_->request_tail.store(tail_, std::memory_order_relaxed);
    return env_id;
  }
  // Whether this worker, which is awake, may spin for requests before it sleeps: if every worker that is awake can have a
  // core. Otherwise it would take time from one that still runs its envs.
  bool may_spin() const { return layout_.num_workers - layout_.asleep(base_).count() <= num_cores_; }
  // Returns when there is a request or the pool is stopped, and wakes a few other workers that have requests. Called without
  // the GIL.
  void sleep();

  // The env's row is complete. finished_ns: the present time.
  void finish(std::int32_t env_id, std::int64_t finished_ns) {
    Header& header = this->header();
    next_finished() = {env_id, done_, finished_ns};
    state_->done_head.store(++done_, std::memory_order_seq_cst);
    layout_.ready(base_).add(worker_);
    // Last: a row that is counted and not collected yet has its worker in the set.
    const std::uint32_t completed = header.num_finished.fetch_add(1, std::memory_order_seq_cst) + 1;
    if (header.is_caller_waiting.load(std::memory_order_seq_cst) != 0 &&
        static_cast<std::int32_t>(completed - header.wanted.load(std::memory_order_seq_cst)) >= 0) {
      header.caller_wakeups.fetch_add(1, std::memory_order_seq_cst);
      engine::wake_shared(header.caller_wakeups);
    }
  }
  // The same in the caller's own thread: there is no other thread to wake.
  void finish_inline(std::int32_t env_id, std::int64_t finished_ns) {
    next_finished() = {env_id, done_, finished_ns};
    state_->done_head.store(++done_, std::memory_order_relaxed);
    layout_.ready(base_).add(worker_);
  }

 private:
  FinishedRow& next_finished() const { return layout_.finished(base_, worker_)[done_ & (layout_.ring_size - 1)]; }

  std::byte* base_;
  SegmentLayout layout_;
  std::int32_t worker_;
  std::int32_t num_cores_;
  WorkerState* state_;
  engine::AdaptiveSpin spin_;
  std::uint32_t tail_, done_;  // positions of the next request to read and the next finished row to write
};

}  // namespace envfleet::shm
