// Desk: the caller's side of a board: posts requests, waits for rows, keeps what came early.
//
// Thread safety: one thread at a time, but for mark_dead(), which any may call.
// Invariant: every env that was posted arrives exactly once, as its worker's row or, when that
// died, as a lost row.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "board.h"

namespace envfleet::rows {

class Desk {
 public:
  // longest_sleep_ns: signals end a wait at once where they reach the waiting thread; this bounds it where they do not.
  Desk(std::byte* base, Geometry geometry, bool may_spin, std::int64_t step_timeout_ns,
       std::int64_t longest_sleep_ns = 1'000'000'000);

  // Hands these idle envs to their workers. The slots' request parts were written before.
  void post(const std::int32_t* env_ids, std::int64_t count);
  // Takes over what workers have finished. In order of completion.
  void collect();
  // Sleeps until `missing` more rows came in, a worker died or is overdue, a signal came, or
  // timeout_ns passed (negative: no limit). Callers loop. is_watched: step_timeout counts.
  void wait(std::int64_t missing, std::int64_t timeout_ns, bool is_watched);

  bool is_in_flight(std::int32_t env_id) const { return in_flight_[env_id] != 0; }
  bool has_arrived(std::int32_t env_id) const { return arrived_[env_id] != 0; }
  std::int64_t num_arrived() const { return num_arrived_; }
  // The env that arrived first and was not taken yet.
  std::int32_t first_arrived();
  void take(std::int32_t env_id);
  std::int64_t num_in_flight() const { return num_in_flight_; }

  // Its process is gone: what it has in flight arrives as lost rows, and so does all that is
  // posted to it until revive().
  void mark_dead(std::int32_t worker);
  void revive(std::int32_t worker);
  bool is_dead(std::int32_t worker) const { return dead_[worker].load(std::memory_order_acquire) != 0; }
  // Workers that have been at one thing for longer than step_timeout. Empty without a limit.
  // Each is named once: the caller ends it, and its death is told by mark_dead().
  std::vector<std::int32_t> overdue();
  // For one that the caller could not end: it is named at the next look again.
  void name_again(std::int32_t worker) { is_doomed_[worker] = 0; }
  void stop();
  // Ends a wait of the caller's thread, from any other.
  void ring();

  const Geometry& geometry() const { return geometry_; }
  std::byte* base() const { return base_; }
  Slot& slot(std::int32_t env_id) const { return geometry_.slot(base_, env_id); }

 private:
  void lose(std::int32_t env_id);
  bool collect_from(std::int32_t worker);
  std::int64_t ns_to_next_deadline() const;
  std::uint32_t num_requests_pending(std::int32_t worker) const { return posted_[worker] - seen_done_[worker]; }
  bool has_news() const;

  std::byte* base_;
  Geometry geometry_;
  bool may_spin_;
  std::int64_t step_timeout_ns_, longest_sleep_ns_;
  std::vector<std::uint8_t> in_flight_, arrived_;
  std::vector<std::int32_t> worker_of_;
  std::vector<std::uint32_t> seen_done_;  // of each worker's done ring
  std::vector<std::uint32_t> posted_;     // to each worker since it lives
  std::vector<std::uint8_t> touched_;
  std::deque<std::int32_t> queue_;
  std::vector<Done> fresh_;
  std::int64_t num_in_flight_ = 0;
  std::int64_t num_arrived_ = 0;
  std::vector<std::atomic<std::uint8_t>> dead_;
  std::vector<std::uint8_t> is_doomed_;  // was named by overdue()
  std::vector<std::uint8_t> is_buried_;  // its envs in flight were given up
};

}  // namespace envfleet::rows
