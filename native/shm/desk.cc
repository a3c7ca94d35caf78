#include "desk.h"

#include <algorithm>

#include "cores.h"
#include "wait.h"

namespace envfleet::rows {

namespace {

constexpr std::uint8_t kBroken = 3;  // autoreset.Phase.BROKEN
constexpr std::int64_t kSpinNs = 30'000;

}  // namespace

Desk::Desk(std::byte* base, Geometry geometry, bool may_spin, std::int64_t step_timeout_ns, std::int64_t longest_sleep_ns)
    : base_(base),
      geometry_(geometry),
      may_spin_(may_spin),
      step_timeout_ns_(step_timeout_ns),
      longest_sleep_ns_(longest_sleep_ns),
      in_flight_(geometry.num_envs, 0),
      arrived_(geometry.num_envs, 0),
      worker_of_(geometry.num_envs),
      seen_done_(geometry.num_workers, 0),
      posted_(geometry.num_workers, 0),
      touched_(geometry.num_workers, 0),
      dead_(geometry.num_workers),
      is_doomed_(geometry.num_workers, 0),
      is_buried_(geometry.num_workers, 0) {
  for (std::int32_t env_id = 0; env_id < geometry.num_envs; ++env_id) worker_of_[env_id] = geometry.worker_of(env_id);
}

void Desk::post(const std::int32_t* env_ids, std::int64_t count) {
  std::fill(touched_.begin(), touched_.end(), 0);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t env_id = env_ids != nullptr ? env_ids[i] : static_cast<std::int32_t>(i);
    const std::int32_t worker = worker_of_[env_id];
    in_flight_[env_id] = 1;
    arrived_[env_id] = 0;
    ++num_in_flight_;
    if (is_dead(worker)) {
      lose(env_id);
      continue;
    }
    geometry_.requests(base_, worker)[posted_[worker]++ & (geometry_.ring_size - 1)] = env_id;
    touched_[worker] = 1;
  }
  const std::int64_t now = step_timeout_ns_ > 0 ? engine::now_ns() : 0;
  // Woken first are those who sleep on other cores. One who sleeps on the caller's, which is busy, would be sent to
  // an idle core, then another would find its own taken, and two would share one while this one falls idle.
  std::uint32_t elsewhere = 0, beside = 0;
  const int core = engine::this_core();
  for (std::int32_t worker = 0; worker < geometry_.num_workers; ++worker) {
    if (touched_[worker] == 0) continue;
    WorkerWords& words = geometry_.worker(base_, worker);
    // Its time begins when it was idle: another request must not give a worker that is stuck more of it.
    const bool was_idle =
        words.done_head.load(std::memory_order_relaxed) == words.request_head.load(std::memory_order_relaxed);
    if (was_idle) words.posted_ns.store(now, std::memory_order_relaxed);
    words.request_head.store(posted_[worker], std::memory_order_seq_cst);
    if (words.sleeps.load(std::memory_order_seq_cst) == 0) continue;
    const bool is_beside = core >= 0 && words.core.load(std::memory_order_relaxed) == core;
    (is_beside ? beside : elsewhere) |= bit_of(worker);
  }
  if ((elsewhere | beside) == 0) return;
  std::atomic<std::uint32_t>& bell = geometry_.header(base_).work_bell;
  bell.fetch_add(1, std::memory_order_seq_cst);
  if (elsewhere != 0) engine::wake_shared(bell, elsewhere);
  if (beside != 0) engine::wake_shared(bell, beside);
}

bool Desk::collect_from(std::int32_t worker) {
  const std::uint32_t head = geometry_.worker(base_, worker).done_head.load(std::memory_order_acquire);
  const Done* ring = geometry_.done(base_, worker);
  // A worker whose env wrote over the board could say anything; what cannot be is not believed.
  if (head - seen_done_[worker] > num_requests_pending(worker)) return false;
  while (seen_done_[worker] != head) {
    const Done done = ring[seen_done_[worker]++ & (geometry_.ring_size - 1)];
    if (done.env_id < 0 || done.env_id >= geometry_.num_envs || worker_of_[done.env_id] != worker ||
        in_flight_[done.env_id] == 0 || arrived_[done.env_id] != 0) {
      return false;
    }
    arrived_[done.env_id] = 1;
    ++num_arrived_;
    fresh_.push_back(done);
  }
  return true;
}

void Desk::collect() {
  fresh_.clear();
  for (std::int32_t worker = 0; worker < geometry_.num_workers; ++worker) {
    if (is_buried_[worker] != 0) continue;
    // Asked before the ring is read: what a worker finished before it died counts.
    const bool is_gone = is_dead(worker);
    const bool is_sane = collect_from(worker);
    if (!is_sane) dead_[worker].store(1, std::memory_order_release);
    if (!is_gone && is_sane) continue;
    is_buried_[worker] = 1;
    const std::int32_t end = worker + 1 < geometry_.num_workers ? geometry_.first_env(worker + 1) : geometry_.num_envs;
    for (std::int32_t env_id = geometry_.first_env(worker); env_id < end; ++env_id) {
      if (in_flight_[env_id] != 0 && arrived_[env_id] == 0) lose(env_id);
    }
  }
  // Tickets may wrap around: they are compared by their distance.
  std::sort(fresh_.begin(), fresh_.end(),
            [](const Done& a, const Done& b) { return static_cast<std::int32_t>(a.ticket - b.ticket) < 0; });
  for (const Done& done : fresh_) queue_.push_back(done.env_id);
}

void Desk::lose(std::int32_t env_id) {
  Slot& own = slot(env_id);
  own.kind = kLostRow;
  own.phase = kBroken;
  own.reward = 0;
  own.terminated = own.truncated = own.has_final = 0;
  own.reply_bytes = own.info_mask = own.final_mask = 0;
  if (own.op == kReset) own.elapsed_step = 0;
  arrived_[env_id] = 1;
  ++num_arrived_;
  queue_.push_back(env_id);
}

bool Desk::has_news() const {
  for (std::int32_t worker = 0; worker < geometry_.num_workers; ++worker) {
    if (is_dead(worker) && is_buried_[worker] == 0) return true;
  }
  return false;
}

void Desk::wait(std::int64_t missing, std::int64_t timeout_ns, bool is_watched) {
  Header& header = geometry_.header(base_);
  // Read before the rings: what is pushed in between is seen there, and the wait does not begin.
  std::uint32_t target = header.completed.load(std::memory_order_seq_cst);
  std::uint32_t unseen = 0;
  for (std::int32_t worker = 0; worker < geometry_.num_workers; ++worker) {
    if (is_buried_[worker] != 0) continue;
    unseen += geometry_.worker(base_, worker).done_head.load(std::memory_order_seq_cst) - seen_done_[worker];
  }
  if (unseen > 0 || has_news()) return;
  target += static_cast<std::uint32_t>(missing);
  const auto is_done = [&] {
    return static_cast<std::int32_t>(header.completed.load(std::memory_order_seq_cst) - target) >= 0 || has_news();
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
  header.caller_waits.store(1, std::memory_order_seq_cst);
  const std::uint32_t seen = header.bell.load(std::memory_order_seq_cst);
  // After the bell was read: whoever finishes from here on rings it, and the sleep ends at once.
  if (!is_done()) engine::wait_shared_while_equal(header.bell, seen, limit);
  header.caller_waits.store(0, std::memory_order_seq_cst);
}

std::int32_t Desk::first_arrived() {
  // Rows that went out with a batch in order are still named here.
  while (arrived_[queue_.front()] == 0) queue_.pop_front();
  return queue_.front();
}

void Desk::take(std::int32_t env_id) {
  in_flight_[env_id] = 0;
  arrived_[env_id] = 0;
  --num_in_flight_;
  if (--num_arrived_ == 0) queue_.clear();
}

void Desk::mark_dead(std::int32_t worker) {
  dead_[worker].store(1, std::memory_order_seq_cst);
  ring();
}

void Desk::ring() {
  Header& header = geometry_.header(base_);
  header.bell.fetch_add(1, std::memory_order_seq_cst);
  engine::wake_shared(header.bell);
}

void Desk::revive(std::int32_t worker) {
  // What the dead one finished and what it left undone must arrive before its queues are emptied.
  if (is_buried_[worker] == 0) collect();
  WorkerWords& words = geometry_.worker(base_, worker);
  words.request_head.store(0);
  words.request_tail.store(0);
  words.done_head.store(0);
  words.sleeps.store(0);
  geometry_.header(base_).spinners.fetch_and(~spin_bit_of(worker));
  words.current_env.store(-1);
  words.progress_ns.store(0);
  posted_[worker] = seen_done_[worker] = 0;
  is_doomed_[worker] = 0;
  is_buried_[worker] = 0;
  dead_[worker].store(0, std::memory_order_release);
}

std::int64_t Desk::ns_to_next_deadline() const {
  const std::int64_t now = engine::now_ns();
  std::int64_t nearest = longest_sleep_ns_;
  for (std::int32_t worker = 0; worker < geometry_.num_workers; ++worker) {
    if (num_requests_pending(worker) == 0 || is_dead(worker) || is_doomed_[worker] != 0) continue;
    const WorkerWords& words = geometry_.worker(base_, worker);
    const std::int64_t since = std::max(words.progress_ns.load(), words.posted_ns.load());
    nearest = std::min(nearest, since + step_timeout_ns_ - now);
  }
  return nearest;
}

std::vector<std::int32_t> Desk::overdue() {
  std::vector<std::int32_t> late;
  if (step_timeout_ns_ <= 0) return late;
  const std::int64_t now = engine::now_ns();
  for (std::int32_t worker = 0; worker < geometry_.num_workers; ++worker) {
    if (num_requests_pending(worker) == 0 || is_dead(worker) || is_doomed_[worker] != 0) continue;
    const WorkerWords& words = geometry_.worker(base_, worker);
    const std::int64_t since = std::max(words.progress_ns.load(), words.posted_ns.load());
    // What it finished meanwhile may not have been collected yet.
    const bool is_idle = words.done_head.load() == posted_[worker];
    if (is_idle || now - since < step_timeout_ns_) continue;
    is_doomed_[worker] = 1;
    late.push_back(worker);
  }
  return late;
}

void Desk::stop() {
  Header& header = geometry_.header(base_);
  header.stop.store(1, std::memory_order_seq_cst);
  header.work_bell.fetch_add(1, std::memory_order_seq_cst);
  engine::wake_shared(header.work_bell);
}

}  // namespace envfleet::rows
