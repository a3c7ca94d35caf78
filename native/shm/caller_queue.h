// CallerQueue: the caller's side of the shared memory: posts requests and collects finished rows.
//
// Thread safety: one thread at a time, except mark_dead() and wake_caller(), which any thread may call.
// Invariant: every env that was posted is collected exactly once: as its worker's row or, if the worker died, as a lost
// row.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "shm/segment.h"

namespace envfleet::shm {

class CallerQueue {
 public:
  // longest_sleep_ns: the bound on a wait that no signal interrupts, because another thread receives it.
  CallerQueue(std::byte* base, SegmentLayout layout, bool may_spin, std::int64_t step_timeout_ns,
              std::int64_t longest_sleep_ns = 1'000'000'000);

  // Passes these idle envs to their workers. The request fields of their slots have been written.
  void post(const std::int32_t* env_ids, std::int64_t count);
  // Collects the rows that workers have finished, in order of completion.
  void collect();
  // Sleeps until `missing` more rows are finished, a worker has died or is overdue, a signal arrives, or timeout_ns has
  // passed (negative: no limit). May return early; callers loop. is_watched: apply the step timeout.
  void wait(std::int64_t missing, std::int64_t timeout_ns, bool is_watched);

  bool is_in_flight(std::int32_t env_id) const { return in_flight_[env_id] != 0; }
  bool is_collected(std::int32_t env_id) const { return is_collected_[env_id] != 0; }
  std::int64_t num_collected() const { return num_collected_; }
  // The env that finished first among those that were collected and not taken yet.
  std::int32_t first_collected();
  void take(std::int32_t env_id);
  std::int64_t num_in_flight() const { return num_in_flight_; }

  // The worker's process is gone: its rows in flight become lost rows, and so does everything posted to it until
  // revive().
  void mark_dead(std::int32_t worker);
  void revive(std::int32_t worker);
  bool is_dead(std::int32_t worker) const { return dead_[worker].load(std::memory_order_acquire) != 0; }
  // Whether an env of this worker waits at a debugger's prompt.
  bool is_at_prompt(std::int32_t worker) const;
  // Workers that have spent longer than the step timeout on one request; empty without a timeout. Each is reported
  // once: the caller kills it, and mark_dead() follows.
  std::vector<std::int32_t> overdue();
  // For a worker that the caller could not kill: overdue() reports it once more.
  void report_again(std::int32_t worker) {
    is_timed_out_[worker] = 0;
    next_deadline_ns_ = 0;
  }
  void stop();
  // Ends a wait() of the caller's thread; called from another thread.
  void wake_caller();

  const SegmentLayout& layout() const { return layout_; }
  Header& header() const { return layout_.header(base_); }
  WorkerState& worker(std::int32_t index) const { return layout_.worker(base_, index); }
  Slot& slot(std::int32_t env_id) const { return layout_.slot(base_, env_id); }

 private:
  void publish_requests();
  void wake_touched();
  // For workers that another worker was to wake and did not: it died, or it was stopped.
  void wake_all_pending();
  void complete_as_lost(std::int32_t env_id);
  bool collect_from(std::int32_t worker);
  void collect_or_give_up(std::int32_t worker);
  std::uint32_t num_requests_pending(std::int32_t worker) const { return posted_[worker] - num_seen_[worker]; }
  bool has_new_death() const { return num_deaths_.load(std::memory_order_seq_cst) != num_deaths_seen_; }

  std::byte* base_;
  SegmentLayout layout_;
  bool may_spin_;
  std::int64_t step_timeout_ns_, longest_sleep_ns_;
  std::vector<std::uint8_t> in_flight_, is_collected_;
  std::vector<std::int32_t> worker_of_;
  std::vector<std::uint32_t> num_seen_;  // by worker: entries read from its ring buffer of finished rows
  std::vector<std::uint32_t> posted_;    // by worker: requests since it started
  std::vector<std::uint64_t> touched_;   // sets of workers, as in WorkerSet: those that the current post() is about,
  std::vector<std::uint64_t> beside_;    // and among them those that sleep on the caller's core
  std::deque<std::int32_t> completion_order_;
  std::vector<FinishedRow> new_rows_;
  std::int64_t num_in_flight_ = 0;
  std::int64_t num_collected_ = 0;
  std::vector<std::atomic<std::uint8_t>> dead_;
  std::atomic<std::uint32_t> num_deaths_{0};
  std::uint32_t num_deaths_seen_ = 0;
  std::int64_t next_deadline_ns_ = 0;       // no worker is overdue before this time
  std::vector<std::uint8_t> is_timed_out_;  // reported by overdue()
  std::vector<std::uint8_t> is_given_up_;   // its rows in flight were completed as lost
};

}  // namespace envfleet::shm
