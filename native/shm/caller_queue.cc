#include "shm/caller_queue.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "engine/cores.h"
#include "engine/wait.h"
#include "shm/slot_updates.h"
#include "shm/waking.h"

namespace envfleet::shm {

namespace {

constexpr std::int64_t kCallerSpinNs = 30'000;
// After these, post() returns and leaves the rest to the workers that it woke, and to wait().
constexpr std::int32_t kMaxWokenPerPost = 16;

template <class Visit>
void for_each_worker(std::int32_t word_index, std::uint64_t bits, Visit&& visit) {
  for (; bits != 0; bits &= bits - 1) visit(word_index * WorkerSet::kWordBits + std::countr_zero(bits));
}

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
      touched_(WorkerSet::num_words_for(layout.num_workers), 0),
      beside_(touched_.size(), 0),
      dead_(layout.num_workers),
      is_timed_out_(layout.num_workers, 0),
      is_given_up_(layout.num_workers, 0) {
  for (std::int32_t env_id = 0; env_id < layout.num_envs; ++env_id) worker_of_[env_id] = layout.worker_of(env_id);
}

void CallerQueue::post(const std::int32_t* env_ids, std::int64_t count) {
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
    touched_[worker / WorkerSet::kWordBits] |= WorkerSet::bit_of(worker);
  }
  publish_requests();
  wake_touched();
  std::fill(touched_.begin(), touched_.end(), 0);
}

void CallerQueue::publish_requests() {
  const bool is_timed = step_timeout_ns_ > 0;
  const std::int64_t now = is_timed ? engine::now_ns() : 0;
  if (is_timed) next_deadline_ns_ = std::min(next_deadline_ns_, now + step_timeout_ns_);
  for (std::int32_t index = 0; index < std::ssize(touched_); ++index) {
    for_each_worker(index, touched_[index], [&](std::int32_t worker) {
      WorkerState& state = layout_.worker(base_, worker);
      // Only if the worker was idle: another request must not extend the time limit of a worker that is stuck.
      if (is_timed &&
          state.done_head.load(std::memory_order_relaxed) == state.request_head.load(std::memory_order_relaxed)) {
        state.posted_ns.store(now, std::memory_order_relaxed);
      }
      state.request_head.store(posted_[worker], std::memory_order_seq_cst);
    });
  }
}

// Workers that sleep on other cores are woken first. A worker that sleeps on the caller's core, which is busy, would be
// moved to an idle core; the worker of that core would find it taken, and two would share a core while one is idle.
void CallerQueue::wake_touched() {
  const WorkerSet asleep = layout_.asleep(base_), to_wake = layout_.to_wake(base_);
  const int core = engine::this_core();
  bool is_any_elsewhere = false, is_any_beside = false;
  for (std::int32_t index = 0; index < std::ssize(touched_); ++index) {
    beside_[index] = 0;
    if ((asleep.word(index).load() & touched_[index]) == 0) continue;
    // Removed here, not when they wake up: the next post() must not wake them a second time.
    const std::uint64_t sleepers = asleep.word(index).fetch_and(~touched_[index]) & touched_[index];
    for_each_worker(index, sleepers, [&](std::int32_t worker) {
      const bool is_beside = core >= 0 && layout_.worker(base_, worker).core.load(std::memory_order_relaxed) == core;
      if (is_beside) beside_[index] |= WorkerSet::bit_of(worker);
    });
    const std::uint64_t elsewhere = sleepers & ~beside_[index];
    if (elsewhere != 0) to_wake.word(index).fetch_or(elsewhere);
    is_any_elsewhere = is_any_elsewhere || elsewhere != 0;
    is_any_beside = is_any_beside || beside_[index] != 0;
  }
  if (is_any_elsewhere) wake_sleepers(layout_, base_, kMaxWokenPerPost);
  if (!is_any_beside) return;
  for (std::int32_t index = 0; index < std::ssize(beside_); ++index) {
    if (beside_[index] != 0) to_wake.word(index).fetch_or(beside_[index]);
  }
  wake_sleepers(layout_, base_, kMaxWokenPerPost);
}

void CallerQueue::wake_all_pending() {
  for (std::int32_t worker = 0; worker < layout_.num_workers; ++worker) {
    if (num_requests_pending(worker) > 0 && !is_dead(worker)) wake_worker(layout_.worker(base_, worker));
  }
}

bool CallerQueue::collect_from(std::int32_t worker) {
  // Sequentially consistent, as is the set of ready workers: a worker that finds itself in the set does not add itself.
  const std::uint32_t head = layout_.worker(base_, worker).done_head.load(std::memory_order_seq_cst);
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

void CallerQueue::collect_or_give_up(std::int32_t worker) {
  if (is_given_up_[worker] != 0) return;
  // Read before the ring buffer: rows that a worker finished before it died count.
  const bool is_gone = is_dead(worker);
  const bool is_sane = collect_from(worker);
  if (!is_sane) dead_[worker].store(1, std::memory_order_release);
  if (!is_gone && is_sane) return;
  is_given_up_[worker] = 1;
  for (std::int32_t env_id = layout_.first_env(worker); env_id < layout_.first_env(worker + 1); ++env_id) {
    if (in_flight_[env_id] != 0 && is_collected_[env_id] == 0) complete_as_lost(env_id);
  }
}

void CallerQueue::collect() {
  new_rows_.clear();
  const WorkerSet ready = layout_.ready(base_);
  for (std::int32_t index = 0; index < ready.num_words(); ++index) {
    if (ready.word(index).load() == 0) continue;
    for_each_worker(index, ready.word(index).exchange(0), [&](std::int32_t worker) {
      // An env may have written over the shared memory.
      if (worker < layout_.num_workers) collect_or_give_up(worker);
    });
  }
  if (has_new_death()) {
    // Read before the flags: a death that comes in between is seen again next time.
    num_deaths_seen_ = num_deaths_.load(std::memory_order_seq_cst);
    for (std::int32_t worker = 0; worker < layout_.num_workers; ++worker) {
      if (is_dead(worker)) collect_or_give_up(worker);
    }
    wake_all_pending();
  }
  // By position too: the rows of one worker keep their order if the clock did not advance between them.
  std::sort(new_rows_.begin(), new_rows_.end(), [](const FinishedRow& a, const FinishedRow& b) {
    return a.finished_ns != b.finished_ns ? a.finished_ns < b.finished_ns : a.position < b.position;
  });
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

void CallerQueue::wait(std::int64_t missing, std::int64_t timeout_ns, bool is_watched) {
  Header& header = layout_.header(base_);
  // Read before the set: a row that is finished in between is seen there, and the wait does not begin.
  const std::uint32_t num_finished = header.num_finished.load(std::memory_order_seq_cst);
  if (!layout_.ready(base_).is_empty() || has_new_death()) return;
  const std::uint32_t target = num_finished + static_cast<std::uint32_t>(missing);
  const auto is_done = [&] {
    return static_cast<std::int32_t>(header.num_finished.load(std::memory_order_seq_cst) - target) >= 0 || has_new_death();
  };
  std::int64_t limit = timeout_ns < 0 ? longest_sleep_ns_ : std::min(timeout_ns, longest_sleep_ns_);
  if (is_watched && step_timeout_ns_ > 0) {
    // At most half of the step timeout: see below.
    limit = std::min({limit, next_deadline_ns_ - engine::now_ns(), std::max<std::int64_t>(step_timeout_ns_ / 2, 1)});
  }
  if (limit <= 0) return;
  // There is nothing better to do, and then a worker that is stopped delays only those it has just removed from the set.
  wake_sleepers(layout_, base_, layout_.num_workers);
  const std::int64_t start = engine::now_ns();
  if (may_spin_) {
    do {
      for (int i = 0; i < 32; ++i) {
        if (is_done()) return;
        engine::relax_cpu();
      }
    } while (engine::now_ns() - start < std::min(kCallerSpinNs, limit));
  }
  header.wanted.store(target, std::memory_order_seq_cst);
  header.is_caller_waiting.store(1, std::memory_order_seq_cst);
  const std::uint32_t seen = header.caller_wakeups.load(std::memory_order_seq_cst);
  // Checked after the futex was read: a worker that finishes from here on changes it, and the sleep ends at once.
  if (!is_done()) engine::wait_shared_while_equal(header.caller_wakeups, seen, limit);
  header.is_caller_waiting.store(0, std::memory_order_seq_cst);
  // A worker may have been stopped (SIGSTOP) just before it woke another, which must not exceed its step timeout for that.
  if (!is_done() && engine::now_ns() - start >= limit) wake_all_pending();
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
  num_deaths_.fetch_add(1, std::memory_order_seq_cst);
  wake_caller();
}

void CallerQueue::wake_caller() {
  Header& header = layout_.header(base_);
  header.caller_wakeups.fetch_add(1, std::memory_order_seq_cst);
  engine::wake_shared(header.caller_wakeups);
}

void CallerQueue::revive(std::int32_t worker) {
  // Rows that the dead worker finished, and those it left undone, are collected before its queues are emptied.
  if (is_given_up_[worker] == 0) {
    // Also if mark_dead(), in another thread, has not counted the death yet: collect() must look at the dead workers.
    --num_deaths_seen_;
    collect();
  }
  WorkerState& state = layout_.worker(base_, worker);
  state.request_head.store(0);
  state.request_tail.store(0);
  state.done_head.store(0);
  for (const WorkerSet& set : {layout_.asleep(base_), layout_.to_wake(base_), layout_.ready(base_)}) set.remove(worker);
  state.current_env.store(-1);
  state.progress_ns.store(0);
  posted_[worker] = num_seen_[worker] = 0;
  is_timed_out_[worker] = 0;
  is_given_up_[worker] = 0;
  dead_[worker].store(0, std::memory_order_release);
}

bool CallerQueue::is_at_prompt(std::int32_t worker) const {
  return layout_.worker(base_, worker).progress_ns.load() > engine::now_ns();
}

std::vector<std::int32_t> CallerQueue::overdue() {
  std::vector<std::int32_t> late;
  if (step_timeout_ns_ <= 0) return late;
  const std::int64_t now = engine::now_ns();
  // A worker's deadline moves away while it works, so until the nearest one there is nothing to find.
  if (now < next_deadline_ns_) return late;
  next_deadline_ns_ = std::numeric_limits<std::int64_t>::max();
  for (std::int32_t worker = 0; worker < layout_.num_workers; ++worker) {
    if (num_requests_pending(worker) == 0 || is_dead(worker) || is_timed_out_[worker] != 0) continue;
    const WorkerState& state = layout_.worker(base_, worker);
    // Rows that it has finished meanwhile may not have been collected yet.
    if (state.done_head.load() == posted_[worker]) continue;
    const std::int64_t deadline = std::max(state.progress_ns.load(), state.posted_ns.load()) + step_timeout_ns_;
    if (now < deadline) {
      // A debugger's prompt puts the deadline off, and its end brings it nearer again.
      next_deadline_ns_ = std::min({next_deadline_ns_, deadline, now + step_timeout_ns_});
      continue;
    }
    is_timed_out_[worker] = 1;
    late.push_back(worker);
  }
  return late;
}

void CallerQueue::stop() {
  Header& header = layout_.header(base_);
  header.stop.store(1, std::memory_order_seq_cst);
  for (std::int32_t worker = 0; worker < layout_.num_workers; ++worker) wake_worker(layout_.worker(base_, worker));
}

}  // namespace envfleet::shm
