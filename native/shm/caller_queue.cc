#include "shm/caller_queue.h"

#include <algorithm>

#include "engine/cores.h"
#include "engine/wait.h"
#include "shm/slot_updates.h"

namespace envfleet::shm {

namespace {

constexpr std::int64_t kSpinNs = 30'000;

}  // namespace

CallerQueue::CallerQueue(std::byte* base, SegmentLayout layout, bool may_spin, std::int64_t step_timeout_ns,
                         std::int64_t longest_sleep_ns)
    : base_(base),
      layout_(layout),
      may_spin_(may_spin),
      step_timeout_ns_(step_timeout_ns),
      longest_sleep_ns_(longest_sleep_ns),
      in_flight_(layout.num_envs, 0),
      is_collected_(layout.num_envs, 0),
      worker_of_(layout.num_envs),
      num_seen_(layout.num_workers, 0),
      posted_(layout.num_workers, 0),
      touched_(layout.num_workers, 0),
      dead_(layout.num_workers),
      is_timed_out_(layout.num_workers, 0),
      is_given_up_(layout.num_workers, 0) {
  for (std::int32_t env_id = 0; env_id < layout.num_envs; ++env_id) worker_of_[env_id] = layout.worker_of(env_id);
}

void CallerQueue::post(const std::int32_t* env_ids, std::int64_t count) {
  std::fill(touched_.begin(), touched_.end(), 0);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t env_id = env_ids != nullptr ? env_ids[i] : static_cast<std::int32_t>(i);
    const std::int32_t worker = worker_of_[env_id];
    in_flight_[env_id] = 1;
    is_collected_[env_id] = 0;
    ++num_in_flight_;
    if (is_dead(worker)) {
      complete_as_lost(env_id);
      continue;
    }
    layout_.requests(base_, worker)[posted_[worker]++ & (layout_.ring_size - 1)] = env_id;
    touched_[worker] = 1;
  }
  const std::int64_t now = step_timeout_ns_ > 0 ? engine::now_ns() : 0;
  // Workers that sleep on other cores are woken first. A worker that sleeps on the caller's core, which is busy, would
  // be moved to an idle core; the worker of that core would find it taken, and two would share a core while one is idle.
  std::uint32_t elsewhere = 0, beside = 0;
  const int core = engine::this_core();
  for (std::int32_t worker = 0; worker < layout_.num_workers; ++worker) {
    if (touched_[worker] == 0) continue;
    WorkerState& state = layout_.worker(base_, worker);
    // Only if the worker was idle: another request must not extend the time limit of a worker that is stuck.
    const bool was_idle =
        state.done_head.load(std::memory_order_relaxed) == state.request_head.load(std::memory_order_relaxed);
    if (was_idle) state.posted_ns.store(now, std::memory_order_relaxed);
    state.request_head.store(posted_[worker], std::memory_order_seq_cst);
    if (state.is_sleeping.load(std::memory_order_seq_cst) == 0) continue;
    const bool is_beside = core >= 0 && state.core.load(std::memory_order_relaxed) == core;
    (is_beside ? beside : elsewhere) |= wake_bit_of(worker);
  }
  if ((elsewhere | beside) == 0) return;
  std::atomic<std::uint32_t>& wakeups = layout_.header(base_).worker_wakeups;
  wakeups.fetch_add(1, std::memory_order_seq_cst);
  if (elsewhere != 0) engine::wake_shared(wakeups, elsewhere);
  if (beside != 0) engine::wake_shared(wakeups, beside);
}

bool CallerQueue::collect_from(std::int32_t worker) {
  const std::uint32_t head = layout_.worker(base_, worker).done_head.load(std::memory_order_acquire);
  const FinishedRow* ring = layout_.finished(base_, worker);
  // An env may have overwritten the shared memory: entries that are impossible mean that its worker is not usable.
  if (head - num_seen_[worker] > num_requests_pending(worker)) return false;
  while (num_seen_[worker] != head) {
    const FinishedRow done = ring[num_seen_[worker]++ & (layout_.ring_size - 1)];
    if (done.env_id < 0 || done.env_id >= layout_.num_envs || worker_of_[done.env_id] != worker ||
        in_flight_[done.env_id] == 0 || is_collected_[done.env_id] != 0) {
      return false;
    }
    is_collected_[done.env_id] = 1;
    ++num_collected_;
    new_rows_.push_back(done);
  }
  return true;
}

void CallerQueue::collect() {
  new_rows_.clear();
  for (std::int32_t worker = 0; worker < layout_.num_workers; ++worker) {
    if (is_given_up_[worker] != 0) continue;
    // Read before the ring buffer: rows that a worker finished before it died count.
    const bool is_gone = is_dead(worker);
    const bool is_sane = collect_from(worker);
    if (!is_sane) dead_[worker].store(1, std::memory_order_release);
    if (!is_gone && is_sane) continue;
    is_given_up_[worker] = 1;
    for (std::int32_t env_id = layout_.first_env(worker); env_id < layout_.first_env(worker + 1); ++env_id) {
      if (in_flight_[env_id] != 0 && is_collected_[env_id] == 0) complete_as_lost(env_id);
    }
  }
  // Tickets may wrap around, so they are compared by their distance.
  std::sort(new_rows_.begin(), new_rows_.end(),
            [](const FinishedRow& a, const FinishedRow& b) { return static_cast<std::int32_t>(a.ticket - b.ticket) < 0; });
  for (const FinishedRow& done : new_rows_) completion_order_.push_back(done.env_id);
}

void CallerQueue::complete_as_lost(std::int32_t env_id) {
  Slot& own = slot(env_id);
  clear_row(own, kLostRow, own.op == kReset);
  own.reply_bytes = 0;
  is_collected_[env_id] = 1;
  ++num_collected_;
  completion_order_.push_back(env_id);
}

bool CallerQueue::has_new_death() const {
  for (std::int32_t worker = 0; worker < layout_.num_workers; ++worker) {
    if (is_dead(worker) && is_given_up_[worker] == 0) return true;
  }
  return false;
}

void CallerQueue::wait(std::int64_t missing, std::int64_t timeout_ns, bool is_watched) {
  Header& header = layout_.header(base_);
  // Read before the ring buffers: a row that is finished in between is seen there, and the wait does not begin.
  std::uint32_t target = header.num_finished.load(std::memory_order_seq_cst);
  std::uint32_t unseen = 0;
  for (std::int32_t worker = 0; worker < layout_.num_workers; ++worker) {
    if (is_given_up_[worker] != 0) continue;
    unseen += layout_.worker(base_, worker).done_head.load(std::memory_order_seq_cst) - num_seen_[worker];
  }
  if (unseen > 0 || has_new_death()) return;
  target += static_cast<std::uint32_t>(missing);
  const auto is_done = [&] {
    return static_cast<std::int32_t>(header.num_finished.load(std::memory_order_seq_cst) - target) >= 0 || has_new_death();
  };
  std::int64_t limit = timeout_ns < 0 ? longest_sleep_ns_ : std::min(timeout_ns, longest_sleep_ns_);
  if (is_watched && step_timeout_ns_ > 0) limit = std::min(limit, ns_to_next_deadline());
  if (limit <= 0) return;
  if (may_spin_) {
    const std::int64_t start = engine::now_ns();
    do {
      for (int i = 0; i < 32; ++i) {
        if (is_done()) return;
        engine::relax_cpu();
      }
    } while (engine::now_ns() - start < std::min(kSpinNs, limit));
  }
  header.wanted.store(target, std::memory_order_seq_cst);
  header.is_caller_waiting.store(1, std::memory_order_seq_cst);
  const std::uint32_t seen = header.caller_wakeups.load(std::memory_order_seq_cst);
  // Checked after the futex was read: a worker that finishes from here on changes it, and the sleep ends at once.
  if (!is_done()) engine::wait_shared_while_equal(header.caller_wakeups, seen, limit);
  header.is_caller_waiting.store(0, std::memory_order_seq_cst);
}

std::int32_t CallerQueue::first_collected() {
  // Rows that were taken with an ordered batch are still listed here.
  while (is_collected_[completion_order_.front()] == 0) completion_order_.pop_front();
  return completion_order_.front();
}

void CallerQueue::take(std::int32_t env_id) {
  in_flight_[env_id] = 0;
  is_collected_[env_id] = 0;
  --num_in_flight_;
  if (--num_collected_ == 0) completion_order_.clear();
}

void CallerQueue::mark_dead(std::int32_t worker) {
  dead_[worker].store(1, std::memory_order_seq_cst);
  wake_caller();
}

void CallerQueue::wake_caller() {
  Header& header = layout_.header(base_);
  header.caller_wakeups.fetch_add(1, std::memory_order_seq_cst);
  engine::wake_shared(header.caller_wakeups);
}

void CallerQueue::revive(std::int32_t worker) {
  // Rows that the dead worker finished, and those it left undone, are collected before its queues are emptied.
  if (is_given_up_[worker] == 0) collect();
  WorkerState& state = layout_.worker(base_, worker);
  state.request_head.store(0);
  state.request_tail.store(0);
  state.done_head.store(0);
  state.is_sleeping.store(0);
  layout_.header(base_).spinners.fetch_and(~spin_bit_of(worker));
  state.current_env.store(-1);
  state.progress_ns.store(0);
  posted_[worker] = num_seen_[worker] = 0;
  is_timed_out_[worker] = 0;
  is_given_up_[worker] = 0;
  dead_[worker].store(0, std::memory_order_release);
}

std::int64_t CallerQueue::ns_to_next_deadline() const {
  const std::int64_t now = engine::now_ns();
  std::int64_t nearest = longest_sleep_ns_;
  for (std::int32_t worker = 0; worker < layout_.num_workers; ++worker) {
    if (num_requests_pending(worker) == 0 || is_dead(worker) || is_timed_out_[worker] != 0) continue;
    const WorkerState& state = layout_.worker(base_, worker);
    const std::int64_t since = std::max(state.progress_ns.load(), state.posted_ns.load());
    nearest = std::min(nearest, since + step_timeout_ns_ - now);
  }
  return nearest;
}

std::vector<std::int32_t> CallerQueue::overdue() {
  std::vector<std::int32_t> late;
  if (step_timeout_ns_ <= 0) return late;
  const std::int64_t now = engine::now_ns();
  for (std::int32_t worker = 0; worker < layout_.num_workers; ++worker) {
    if (num_requests_pending(worker) == 0 || is_dead(worker) || is_timed_out_[worker] != 0) continue;
    const WorkerState& state = layout_.worker(base_, worker);
    const std::int64_t since = std::max(state.progress_ns.load(), state.posted_ns.load());
    // Rows that it has finished meanwhile may not have been collected yet.
    const bool is_idle = state.done_head.load() == posted_[worker];
    if (is_idle || now - since < step_timeout_ns_) continue;
    is_timed_out_[worker] = 1;
    late.push_back(worker);
  }
  return late;
}

void CallerQueue::stop() {
  Header& header = layout_.header(base_);
  header.stop.store(1, std::memory_order_seq_cst);
  header.worker_wakeups.fetch_add(1, std::memory_order_seq_cst);
  engine::wake_shared(header.worker_wakeups);
}

}  // namespace envfleet::shm
