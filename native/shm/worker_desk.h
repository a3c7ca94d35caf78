// WorkerDesk: a worker's side of a board, without its envs: takes requests, sleeps until there are
// some, tells the caller what is done.
//
// Thread safety: one thread at a time; the caller is at work on the other side (board.h, desk.h).
// Invariant: every request that was taken is finished once, in whatever state its row is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "board.h"
#include "wait.h"

namespace envfleet::rows {

class WorkerDesk {
 public:
  // max_spinners: how many of the board's workers may look out for requests before they sleep; 0: none.
  WorkerDesk(std::byte* base, Geometry geometry, std::int32_t worker, std::int32_t max_spinners)
      : base_(base),
        geometry_(geometry),
        worker_(worker),
        max_spinners_(max_spinners),
        words_(&geometry_.worker(base, worker)),
        tail_(words_->request_tail.load()),
        done_(words_->done_head.load()) {}

  // The envs of this worker: from the first to before the end.
  std::int32_t first_env() const { return geometry_.first_env(worker_); }
  std::int32_t end_env() const {
    return worker_ + 1 < geometry_.num_workers ? geometry_.first_env(worker_ + 1) : geometry_.num_envs;
  }

  Header& header() const { return geometry_.header(base_); }
  WorkerWords& words() const { return *words_; }
  Slot& slot(std::int32_t env_id) const { return geometry_.slot(base_, env_id); }

  bool is_stopped() const { return header().stop.load(std::memory_order_acquire) != 0; }
  bool has_request() const { return words_->request_head.load(std::memory_order_acquire) != tail_; }
  // The env that is asked for next. Only when there is a request.
  std::int32_t take_request() {
    const std::int32_t env_id = geometry_.requests(base_, worker_)[tail_ & (geometry_.ring_size - 1)];
    ++tail_;
    words_->request_tail.store(tail_, std::memory_order_relaxed);
    return env_id;
  }
  // Until there is a request or the board says stop. start_ns: now. Without the GIL.
  void sleep(std::int64_t start_ns);

  // The env's row is complete.
  void finish(std::int32_t env_id) {
    Header& header = this->header();
    next_done() = {env_id, header.order.fetch_add(1)};
    words_->done_head.store(++done_, std::memory_order_seq_cst);
    const std::uint32_t completed = header.completed.fetch_add(1, std::memory_order_seq_cst) + 1;
    if (header.caller_waits.load(std::memory_order_seq_cst) != 0 &&
        static_cast<std::int32_t>(completed - header.wanted.load(std::memory_order_seq_cst)) >= 0) {
      header.bell.fetch_add(1, std::memory_order_seq_cst);
      engine::wake_shared(header.bell);
    }
  }
  // The same in the caller's own thread: nobody else looks, and nobody sleeps.
  void finish_inline(std::int32_t env_id) {
    next_done() = {env_id, done_};
    words_->done_head.store(++done_, std::memory_order_relaxed);
  }

 private:
  Done& next_done() const { return geometry_.done(base_, worker_)[done_ & (geometry_.ring_size - 1)]; }
  template <class IsWanted>
  bool spin_until(IsWanted&& is_wanted, std::int64_t start_ns);

  std::byte* base_;
  Geometry geometry_;
  std::int32_t worker_;
  std::int32_t max_spinners_;
  WorkerWords* words_;
  std::uint32_t tail_, done_;  // where the next request is read, and the next done row written
};

}  // namespace envfleet::rows
