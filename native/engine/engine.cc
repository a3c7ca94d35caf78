#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

#include "engine/cores.h"
#include "engine/numpy_host.h"
#include "engine/wait.h"
#include "envfleet/action_type.h"
#include "envfleet/rows.h"
#include "envfleet/step_rule.h"

namespace envfleet::engine {

namespace {

constexpr double kBlockNs = 2'000;       // a block large enough to be worth a claim
constexpr double kLongBlockNs = 10'000;  // a block long enough to make claims cheap
constexpr double kBlocksPerPart = 8;
constexpr int kBlocksToLeave = 1;         // to the thread of a part, by the others; see SyncJob
constexpr double kAsyncBlockNs = 10'000;  // the same for asynchronous blocks, whose rows are copied afterwards
constexpr double kInlinePostNs = 20'000;  // shorter work is done before a thread would be awake
// Actions of at least so many bytes are checked by all threads; below, waiting for them takes longer than the check.
constexpr std::int64_t kSharedCheckBytes = 256 * 1024;
constexpr double kStoredBlockNs = 1'000;  // the actions of a block: at most so long
constexpr std::int64_t kStagingBytes = 1 << 20;
constexpr std::int64_t kMaxAsyncBlock = 1024;
constexpr std::int64_t kCountedRows = 512;      // rows are counted while they are still in the first-level cache
constexpr std::int64_t kKeptBytes = 16 * 1024;  // the same for observations that are kept
// The end of a state that holds the env's last observation before it.
constexpr std::string_view kLastObsMark = "envfleet.last_observation";
constexpr int kAllParts = -1;    // all threads of a batch measure what its rows cost
constexpr int kCallerShard = 0;  // of the counters; worker i has shard i + 1

// Writes only what differs: a line that is written leaves the caches of all threads that read it.
template <class T>
void assign(T& field, const T& value) {
  if (field != value) field = value;
}

}  // namespace

std::shared_ptr<Engine> Engine::make(const ef_env_type& type, const EngineOptions& options,
                                     const std::vector<const ef_value*>& configs) {
  return std::shared_ptr<Engine>(new Engine(type, options, configs));
}

Engine::Engine(const ef_env_type& type, const EngineOptions& options, const std::vector<const ef_value*>& configs)
    : options_(options),
      may_spin_(options.num_threads <= usable_cores()),
      spec_(describe(type, configs.at(0))),
      phases_(options.num_envs, EF_UNSTARTED),
      store_(spec_->action),
      counters_(options.num_envs, options.autoreset, options.num_threads + 1),
      action_bytes_(detail::action_row_bytes(spec_->action)),
      in_flight_(options.num_envs, 0),
      id_checker_(options.num_envs),
      thread_counts_(std::max(options.num_threads, 1)),
      job_(options.num_threads + 1),
      thread_pool_(pool_size(), options.thread_affinity_offset, may_spin_),
      helper_thread_(1, options.thread_affinity_offset < 0 ? -1 : options.thread_affinity_offset + pool_size(), false) {
  faults_.reserve(options.num_envs);
  has_fault_.assign(options.num_envs, 0);
  actions_.assign(static_cast<std::size_t>(action_bytes_) * options.num_envs, 0);
  ef_fleet_options fleet_options{};
  fleet_options.num_envs = options.num_envs;
  fleet_options.autoreset = options.autoreset;
  fleet_options.max_episode_steps = options.max_episode_steps;
  fleet_options.num_configs = static_cast<std::int32_t>(configs.size());
  fleet_options.configs = configs.data();
  fleet_options.phases = phases_.data();
  fleet_options.host = numpy_host();
  fleet_ = std::make_unique<FleetHandle>(type, fleet_options);

  const bool with_finals = has_final_rows(options.autoreset);
  if (options.check_finite) row_checks_.emplace(*spec_, with_finals);
  sync_buffers_ = std::make_shared<BufferPool>(BatchLayout(*spec_, with_finals, options.num_envs));
  if (options.keeps_last_obs) {
    last_obs_.emplace(sync_layout(), options.num_envs);
    max_kept_rows_ =
        std::clamp<std::int64_t>(kKeptBytes / std::max<std::int64_t>(sync_layout().obs_bytes(), 1), 1, kCountedRows);
  }
  if (!is_async()) return;
  async_buffers_ = std::make_shared<BufferPool>(BatchLayout(*spec_, with_finals, options.batch_size));
  posted_options_.resize(options.num_envs);
  queue_ = std::make_unique<AsyncQueue>(async_buffers_, options.num_envs, options.batch_size, options.num_threads);
  std::int64_t row_bytes = 0;
  for (const ColumnLayout& column : sync_layout().columns) row_bytes += column.row_bytes;
  const std::int64_t staging_rows =
      std::clamp<std::int64_t>(kStagingBytes / row_bytes, 1, std::min<std::int64_t>(kMaxAsyncBlock, options.num_envs));
  for (int i = 0; i <= options.num_threads; ++i) {
    staging_.push_back(std::make_unique<BatchBuffer>(BatchLayout(*spec_, with_finals, staging_rows), nullptr));
    staging_.back()->num_rows = staging_rows;
  }
}

Engine::~Engine() {
  if (started_ != nullptr) BufferPool::release(started_);
}

// ------------------------------------------------------------------------------ input

bool Engine::are_idle(const std::int32_t* env_ids, std::int64_t count) {
  if (env_ids == nullptr) return num_in_flight() == 0;
  return id_checker_.accepts(env_ids, count, [this](std::int32_t env_id) { return in_flight_[env_id] != 0; });
}

bool Engine::accepts(const GivenActions& actions) {
  return actions.dtype >= 0 && actions.count > 0 && store_.takes(actions.dtype) &&
         are_idle(actions.env_ids, actions.count) && may_step(actions.env_ids, actions.count);
}

// Without a look at each phase while all envs are known to be steppable.
bool Engine::may_step(const std::int32_t* env_ids, std::int64_t count) {
  const bool may_refuse_ended = refuses_ended(options_.autoreset);
  if (!may_refuse_ended && !may_be_unsteppable_.load(std::memory_order_relaxed)) return true;
  const auto phase_of = [this](std::int32_t env_id) { return phases_[env_id]; };
  if (!engine::may_step(options_.autoreset, env_ids, count, phase_of)) return false;
  if (env_ids == nullptr && !may_refuse_ended) may_be_unsteppable_.store(false, std::memory_order_relaxed);
  return true;
}

bool Engine::store_block(const GivenActions& actions, std::int64_t begin, std::int64_t end) {
  ActionSlots slots = action_slots();
  const std::int32_t* env_ids = actions.env_ids;
  if (env_ids != nullptr) {
    env_ids += begin;
  } else {
    slots.base += begin * slots.slot_bytes;
  }
  const char* first = static_cast<const char*>(actions.data) + begin * store_.row_bytes(actions.dtype);
  return store_.store_valid(slots, first, actions.dtype, env_ids, end - begin);
}

void Engine::mark_in_flight(const std::int32_t* env_ids, std::int64_t count, bool is_in_flight) {
  if (env_ids == nullptr) {
    std::fill_n(in_flight_.data(), count, is_in_flight);
  } else {
    for (std::int64_t begin = 0; begin < count; begin += detail::kGroupRows) {
      const std::int64_t size = std::min<std::int64_t>(count - begin, detail::kGroupRows);
      if (detail::is_consecutive(env_ids + begin, size)) {
        std::fill_n(in_flight_.data() + env_ids[begin], size, is_in_flight);
      } else {
        for (std::int64_t i = begin; i < begin + size; ++i) in_flight_[env_ids[i]] = is_in_flight;
      }
    }
  }
  num_in_flight_.store(num_in_flight() + (is_in_flight ? count : -count), std::memory_order_relaxed);
}

// ------------------------------------------------------------------------ synchronous

// Sets the fields of a batch's rows other than its columns and ids.
void Engine::fill_in(ef_rows& rows, Request request, const ResetOptions* options) {
  const bool takes_options = request == Request::reset;
  decltype(rows.on_fault) on_fault = &Engine::on_fault<Request::step>;
  if (request == Request::reset) on_fault = &Engine::on_fault<Request::reset>;
  if (request == Request::observe) on_fault = &Engine::on_fault<Request::observe>;
  assign<const void*>(rows.actions, actions_.data());
  assign<const ef_option*>(rows.options, takes_options ? options->raw.data() : nullptr);
  assign<std::int64_t>(rows.num_options, takes_options ? static_cast<std::int64_t>(options->raw.size()) : 0);
  assign(rows.on_fault, on_fault);
  assign<void*>(rows.fault_context, this);
}

void Engine::prepare(Request request, const std::int32_t* env_ids, std::int64_t num_rows) {
  // Threads that still run the other batch find its buffer through started_ and would continue in this one.
  if (started_ != nullptr) {
    throw std::logic_error(
        "expected no other batch in flight, got one that was started; finish() or drop_pending() it first");
  }
  BatchBuffer* buffer = sync_buffers_->acquire();
  assign(buffer->num_rows, num_rows);
  assign(buffer->is_whole, env_ids == nullptr);
  ef_rows& rows = buffer->rows();
  if (env_ids != nullptr) std::memcpy(buffer->env_ids(), env_ids, num_rows * sizeof(std::int32_t));
  assign<const std::int32_t*>(rows.env_ids, env_ids != nullptr ? buffer->env_ids() : nullptr);
  if (request == Request::reset) drop_faults(env_ids, num_rows);
  assign(started_options_, reset_options_);  // shared: a late batch may still read them after set_reset_options()
  fill_in(rows, request, started_options_.get());
  if (request == Request::step && env_ids == nullptr) counters_.begin_whole();
  started_request_ = request;
  started_ = buffer;
}

void Engine::publish(std::int64_t rows, double ns_per_row, int threads, int num_to_leave) {
  // If the cost is unknown: blocks small enough to balance a slow env, large enough to keep the overhead low.
  std::int64_t block = rows / (threads * 16);
  if (ns_per_row > 0) {
    const double share_ns = ns_per_row * static_cast<double>(rows) / threads;
    // Rounded: the next smaller power of two of 511.99 would be half of what 512 gives.
    block = std::llround(std::clamp(share_ns / kBlocksPerPart, kBlockNs, kLongBlockNs) / ns_per_row);
  }
  if (!is_storing_) measured_part_ = ns_per_row > 0 ? static_cast<int>(++num_published_ % threads) : kAllParts;
  job_.publish(rows, block, threads, num_to_leave);
}

void Engine::start(Request request, const std::int32_t* env_ids, std::int64_t num_rows, bool may_run_here) {
  const double ns_per_row = meter(request).estimate();
  const bool is_quick = may_run_here && ns_per_row > 0 && ns_per_row * static_cast<double>(num_rows) < kInlinePostNs;
  // Before the batch is published: this throws if no thread can be created, and nothing would run the batch then.
  if (!is_quick) {
    start_threads();
    start_helper_thread();
  }
  prepare(request, env_ids, num_rows);
  mark_in_flight(env_ids, num_rows, true);
  publish(num_rows, ns_per_row, std::max(options_.num_threads, 1));
  if (is_quick) {
    run_part(0);
    return;
  }
  thread_pool_.notify(thread_pool_.size());
  helper_thread_.notify(1);
}

BatchBuffer* Engine::finish(std::int64_t timeout_ns, bool may_help) {
  if (may_help) run_part(0);
  if (!job_.wait(timeout_ns, may_spin_)) return nullptr;
  BatchBuffer* done = hand_over();
  mark_received(*done);
  return done;
}

void Engine::put_back(BatchBuffer* batch) {
  started_ = batch;
  mark_in_flight(batch->is_whole ? nullptr : batch->env_ids(), batch->num_rows, true);
}

BatchBuffer* Engine::hand_over() {
  BatchBuffer* done = started_;
  started_ = nullptr;
  meter(started_request_).update();
  return done;
}

BatchBuffer* Engine::run_batch(Request request, const std::int32_t* env_ids, std::int64_t num_rows,
                               const GivenActions* actions) {
  const double ns_per_row = meter(request).estimate();
  const int num_threads = pool_size() <= 0 || num_rows == 1 ? 1 : thread_counts_.choose(num_rows, ns_per_row);
  if (num_threads > 1) start_threads();  // may throw, so before the batch exists; see start()
  const std::int64_t begin_ns = now_ns();
  if (actions != nullptr) {
    // One pass before the steps, by all threads, or a check by the caller and storing within the steps.
    const bool is_large = num_rows * store_.row_bytes(actions->dtype) >= kSharedCheckBytes;
    const bool are_accepted = num_threads == 1 ? store(*actions)
                              : is_large       ? store_shared(*actions, ns_per_row, num_threads)
                                               : store_.accepts(actions->data, actions->dtype, num_rows);
    if (!are_accepted) return nullptr;
    if (num_threads == 1 || is_large) actions = nullptr;
  }
  prepare(request, env_ids, num_rows);
  if (actions != nullptr) started_actions_ = *actions;
  if (num_threads == 1) {
    run_range(request, started_->rows(), 0, num_rows, kCallerShard);
  } else {
    run_shared(num_rows, ns_per_row, num_threads);
  }
  const std::int64_t end_ns = now_ns();
  if (actions != nullptr) started_actions_ = {};
  if (num_threads == 1) meter(request).add(num_rows, end_ns - begin_ns);
  if (request == Request::step) thread_counts_.record(num_rows, num_threads, end_ns - begin_ns, end_ns);
  return hand_over();
}

bool Engine::store_shared(const GivenActions& actions, double ns_per_row, int num_threads) {
  started_actions_ = actions;
  is_storing_ = true;
  are_refused_.store(false, std::memory_order_relaxed);
  // In the blocks in which the envs are stepped afterwards: each thread then has its actions in its cache.
  run_shared(actions.count, ns_per_row, num_threads);
  is_storing_ = false;
  started_actions_ = {};
  return !are_refused_.load(std::memory_order_relaxed);
}

void Engine::run_shared(std::int64_t num_rows, double ns_per_row, int num_threads) {
  // An expensive env may change cores, and a caller that may not spin cannot wait for a few microseconds.
  const bool leaves_blocks = may_spin_ && ns_per_row > 0 && ns_per_row < kBlockNs / 2;
  publish(num_rows, ns_per_row, num_threads, leaves_blocks ? kBlocksToLeave : 0);
  thread_pool_.notify(num_threads - 1);
  run_part(0);
  if (leaves_blocks) {
    // As long as a thread takes that is about to finish its part. Then it has lost its core, or never woke up.
    const double block_ns = is_storing_ ? kStoredBlockNs : ns_per_row * static_cast<double>(job_.block_rows());
    if (!job_.wait(static_cast<std::int64_t>((kBlocksToLeave + 1) * block_ns), true)) run_part(0, true);
  }
  job_.wait(-1, may_spin_);
}

void Engine::run_range(Request request, ef_rows& rows, std::int64_t begin, std::int64_t end, int shard,
                       const GivenActions* actions) {
  const ef_env_type& type = fleet_->type();
  switch (request) {
    case Request::step:
      for (std::int64_t next = begin; begin < end; begin = next) {
        next = std::min(begin + (last_obs_ ? max_kept_rows_ : kCountedRows), end);
        if (actions != nullptr) store_block(*actions, begin, next);
        type.step_range(fleet_->raw(), &rows, begin, next);
        if (row_checks_) refuse_non_finite(rows, begin, next);  // while the rows are in the first-level cache
        if (last_obs_) keep_last_obs(rows, begin, next);
        counters_.count_steps(shard, rows, begin, next);
      }
      break;
    case Request::reset:
      type.reset_range(fleet_->raw(), &rows, begin, end);
      if (row_checks_) refuse_non_finite(rows, begin, end);
      if (last_obs_) keep_last_obs(rows, begin, end);
      counters_.count_resets(shard, rows, begin, end);
      break;
    case Request::observe:
      // An env that was built with an earlier header leaves this column as it was.
      std::fill(rows.elapsed_step + begin, rows.elapsed_step + end, 0);
      type.observe_range(fleet_->raw(), &rows, begin, end);
      // An env that was rebuilt after it threw shows its last observation until its next episode starts.
      for (std::int64_t row = begin; last_obs_ && row < end; ++row) {
        const std::int32_t env_id = detail::env_of(rows, row);
        if (phases_[env_id] == EF_ENDED) last_obs_->restore(rows, row, env_id);
      }
      break;
  }
}

void Engine::refuse_non_finite(const ef_rows& rows, std::int64_t begin, std::int64_t end) noexcept {
  const bool are_accepted = row_checks_->accepts(rows, begin, end);
  if (are_accepted && !row_checks_->has_finals()) return;
  for (std::int64_t row = begin; row < end; ++row) {
    if (are_accepted && !row_checks_->has_final(rows, row)) continue;
    const RowChecks::Finding finding = row_checks_->find(rows, row);
    const std::int32_t env_id = detail::env_of(rows, row);
    // One that threw in this range has been reported.
    if (finding.what[0] == '\0' || phases_[env_id] == EF_BROKEN) continue;
    phases_[env_id] = EF_BROKEN;
    row_checks_->clear(rows, row, finding.method);
    rows.on_fault(rows.fault_context, row, env_id, finding.method, finding.what);
  }
}

void Engine::keep_last_obs(const ef_rows& rows, std::int64_t begin, std::int64_t end) {
  if (!has_faults()) [[likely]] {
    last_obs_->keep(rows, begin, end);
    return;
  }
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int32_t env_id = detail::env_of(rows, row);
    if (phases_[env_id] == EF_BROKEN) {
      last_obs_->restore(rows, row, env_id);
    } else {
      last_obs_->keep(rows, row, row + 1);
    }
  }
}

void Engine::run_measured(Request request, ef_rows& rows, std::int64_t begin, std::int64_t end, int shard) {
  const std::int64_t start = now_ns();
  run_range(request, rows, begin, end, shard);
  meter(request).add(end - begin, now_ns() - start);
}

bool Engine::run_part(int own_part, bool leaves_none) {
  // Measured once and not per block: two clock reads cost as much as a few envs.
  std::int64_t num_rows = 0, start = 0;
  Request request = Request::step;
  bool is_metered = false, has_woken = false;
  __builtin_prefetch(&started_);  // while the first block is being claimed
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    if (is_storing_) [[unlikely]] {
      if (!has_woken) thread_pool_.wake_more();
      has_woken = true;
      if (!store_block(started_actions_, begin, end)) are_refused_.store(true, std::memory_order_relaxed);
      return;
    }
    if (num_rows == 0) {
      if (!has_woken) thread_pool_.wake_more();
      start = now_ns();
      request = started_request_;
      // One thread per batch, each in its turn: if all did, the meter's counters would travel through every core.
      is_metered = measured_part_ == own_part || measured_part_ == kAllParts;
    }
    run_range(started_request_, started_->rows(), begin, end, own_part,
              started_actions_.dtype >= 0 ? &started_actions_ : nullptr);
    num_rows += end - begin;
  };
  const bool has_run = job_.run_blocks(own_part, run, leaves_none);
  if (num_rows == 0) return has_run;
  const std::int64_t duration_ns = now_ns() - start;
  if (!leaves_none) job_.note_speed(own_part, num_rows, duration_ns);
  if (is_metered) meter(request).add(num_rows, duration_ns);
  return true;
}

// ----------------------------------------------------------------------- asynchronous

std::int64_t Engine::async_block_rows(double ns_per_row, std::int64_t num_rows) const {
  if (ns_per_row <= 0) return 1;
  const std::int64_t share = (num_rows + options_.num_threads - 1) / std::max(options_.num_threads, 1);
  const auto worth_a_claim = static_cast<std::int64_t>(kAsyncBlockNs / ns_per_row);
  return std::clamp<std::int64_t>(std::min(share, worth_a_claim), 1, staging_[0]->num_rows);
}

void Engine::post(Request request, const std::int32_t* env_ids, std::int64_t num_rows) {
  const std::int32_t* entries = env_ids;
  if (request == Request::reset) {
    drop_faults(env_ids, num_rows);
    entries_.assign(env_ids, env_ids + num_rows);
    for (std::int32_t& entry : entries_) {
      posted_options_[entry] = reset_options_;
      entry = ~entry;
    }
    entries = entries_.data();
  }
  const double ns_per_row = meter(request).estimate();
  async_block_.store(async_block_rows(ns_per_row, num_rows), std::memory_order_relaxed);
  const auto is_quick_to_run = [&](std::int64_t rows) { return ns_per_row * static_cast<double>(rows) < kInlinePostNs; };
  const bool is_quick = ns_per_row > 0 && is_quick_to_run(num_rows) && is_quick_to_run(queue_->num_waiting() + num_rows);
  if (!is_quick) start_threads();  // may throw, so before the envs are queued; see start()
  mark_in_flight(env_ids, num_rows, true);
  queue_->post(entries, num_rows);
  if (is_quick) {
    async_block_.store(staging_[0]->num_rows, std::memory_order_relaxed);
    while (run_async_block(options_.num_threads)) {
    }
    return;
  }
  thread_pool_.notify(thread_pool_.size());
}

BatchBuffer* Engine::take(std::int64_t timeout_ns) {
  BatchBuffer* batch = queue_->take(timeout_ns, may_spin_);
  for (CostMeter& meter : costs_) meter.update();
  if (batch != nullptr) mark_received(*batch);
  return batch;
}

bool Engine::run_async_block(int worker_index) {
  BatchBuffer& staging = *staging_[worker_index];
  std::int32_t* ids = staging.env_ids();
  const std::int64_t count = queue_->claim(worker_index, ids, async_block_.load(std::memory_order_relaxed));
  if (count == 0) return false;
  if (thread_pool_.has_sleepers() && queue_->num_waiting() > 0) thread_pool_.wake_more();
  const Request request = ids[0] < 0 ? Request::reset : Request::step;
  if (request == Request::reset) {
    for (std::int64_t i = 0; i < count; ++i) ids[i] = ~ids[i];
  }
  // Consecutive envs cost less together. Threads that took single envs, while their cost was not known, mix them up; once
  // sorted, they come back and are posted in this order again.
  if (!std::is_sorted(ids, ids + count)) std::sort(ids, ids + count);
  const int shard = worker_index < options_.num_threads ? worker_index + 1 : kCallerShard;
  ef_rows& rows = staging.rows();
  rows.env_ids = ids;
  for (std::int64_t begin = 0, end = 0; begin < count; begin = end) {
    // The options that were posted with the env: the caller's current ones may change while this runs.
    const ResetOptions* options = posted_options_[ids[begin]].get();
    end = request == Request::reset ? begin + 1 : count;
    while (end < count && posted_options_[ids[end]].get() == options) ++end;
    fill_in(rows, request, options);
    run_measured(request, rows, begin, end, shard);
  }
  queue_->deliver(staging, ids, count);
  return true;
}

// ----------------------------------------------------------------------------- common

bool Engine::work(int worker_index) {
  bool worked = run_part(worker_index + 1);
  if (queue_ != nullptr) worked |= run_async_block(worker_index);
  return worked;
}

void Engine::start_threads() {
  if (thread_pool_.size() >= pool_size()) return;
  // Each thread holds a reference: an env that never returns must not run on freed memory.
  thread_pool_.start([self = shared_from_this()](int worker_index) { return self->work(worker_index); });
}

void Engine::start_helper_thread() {
  if (is_async() || helper_thread_.size() > 0) return;
  helper_thread_.start([self = shared_from_this()](int) { return self->run_part(0); });
}

bool Engine::drop_pending(std::int64_t timeout_ns) {
  const std::int64_t begin_ns = now_ns();
  if (started_ != nullptr) {
    BatchBuffer* late = finish(timeout_ns, false);
    if (late == nullptr) return false;
    drop_faults(late->is_whole ? nullptr : late->env_ids(), late->num_rows);
    BufferPool::release(late);
  }
  if (queue_ == nullptr) return true;
  const std::int64_t rest_ns = timeout_ns < 0 ? -1 : std::max<std::int64_t>(timeout_ns - (now_ns() - begin_ns), 0);
  if (!queue_->drain(rest_ns)) return false;
  erase_faults([this](const Fault& fault) { return in_flight_[fault.env_id] != 0; });
  std::fill(in_flight_.begin(), in_flight_.end(), 0);
  num_in_flight_.store(0, std::memory_order_relaxed);
  return true;
}

void Engine::rebuild(std::int32_t env_id, std::uint8_t phase) {
  ef_error error{};
  may_be_unsteppable_ = true;
  if (fleet_->type().rebuild(fleet_->raw(), env_id, &error) != 0) throw FleetError(error.message);
  drop_faults(&env_id, 1);
  phases_[env_id] = phase;
  counters_.begin_episode(env_id, phase, false);
}

std::string Engine::get_state(std::int32_t env_id) {
  std::string state = fleet_->get_state(env_id);
  if (!last_obs_) return state;
  last_obs_->append_to(state, env_id);
  return state.append(kLastObsMark);
}

void Engine::set_state(std::int32_t env_id, const void* data, std::int64_t size) {
  std::string_view state(static_cast<const char*>(data), static_cast<std::size_t>(size)), last_obs;
  const std::size_t obs_bytes = static_cast<std::size_t>(sync_layout().obs_bytes());
  if (state.ends_with(kLastObsMark) && state.size() >= obs_bytes + kLastObsMark.size()) {
    state.remove_suffix(kLastObsMark.size());
    last_obs = state.substr(state.size() - obs_bytes);
    state.remove_suffix(obs_bytes);
  }
  ef_error error{};
  may_be_unsteppable_ = true;
  const auto num_bytes = static_cast<std::int64_t>(state.size());
  const bool is_set = fleet_->type().set_state(fleet_->raw(), env_id, state.data(), num_bytes, &error) == 0;
  counters_.begin_episode(env_id, phases_[env_id], true);  // also after a state that was loaded only in part
  if (!is_set) throw FleetError(error.message);
  drop_faults(&env_id, 1);
  if (!last_obs_) return;
  if (last_obs.data() != nullptr) {
    last_obs_->load(env_id, last_obs);
  } else {
    keep_observed(env_id);
  }
}

void Engine::keep_observed(std::int32_t env_id) {
  last_obs_->clear(env_id);
  const std::uint8_t phase = phases_[env_id];
  if (phase != EF_RUNNING && phase != EF_ENDED) return;
  const std::unique_ptr<BatchBuffer, decltype(&BufferPool::release)> buffer(sync_buffers_->acquire(), BufferPool::release);
  ef_rows& rows = buffer->rows();
  buffer->env_ids()[0] = env_id;
  rows.env_ids = buffer->env_ids();
  fill_in(rows, Request::observe, nullptr);
  bool has_thrown = false;
  rows.fault_context = &has_thrown;
  rows.on_fault = [](void* context, std::int64_t, std::int32_t, std::int32_t, const char*) noexcept {
    *static_cast<bool*>(context) = true;
  };
  fleet_->type().observe_range(fleet_->raw(), &rows, 0, 1);
  phases_[env_id] = phase;  // that its observation cannot be seen now does not break it
  if (!has_thrown) last_obs_->keep(rows, 0, 1);
}

void Engine::mark_broken(std::int32_t env_id) {
  may_be_unsteppable_ = true;
  phases_[env_id] = EF_BROKEN;
  counters_.begin_episode(env_id, EF_BROKEN, true);
}

void Engine::set_reset_options(std::vector<std::pair<std::string, double>> options) {
  if (options == reset_options_->values) return;
  // A new set instead of a change to the old one, which an env in flight may be reading.
  auto fresh = std::make_shared<ResetOptions>();
  fresh->values = std::move(options);
  for (const auto& [name, value] : fresh->values) fresh->raw.push_back({name.c_str(), value});
  reset_options_ = std::move(fresh);
}

template <Request request>
void Engine::on_fault(void* context, std::int64_t, std::int32_t env_id, std::int32_t method, const char* what) noexcept {
  auto& self = *static_cast<Engine*>(context);
  self.may_be_unsteppable_.store(true, std::memory_order_relaxed);
  self.counters_.drop(env_id, request, method);
  Fault fault{env_id, method, {}};
  // Without memory, possibly the reason of the fault: an exception here would end the process.
  try {
    fault.what = what;
  } catch (...) {
    fault.what = "out of memory";  // fits in the string itself
  }
  std::lock_guard lock(self.faults_mutex_);
  // One per env, so that the reserved memory is enough.
  if (self.has_fault_[env_id] != 0) {
    const auto is_same = [&](const Fault& other) { return other.env_id == env_id; };
    *std::find_if(self.faults_.begin(), self.faults_.end(), is_same) = std::move(fault);
    return;
  }
  self.has_fault_[env_id] = 1;
  self.faults_.push_back(std::move(fault));
  self.num_faults_.fetch_add(1, std::memory_order_release);
}

template <class IsChosen>
std::vector<Fault> Engine::copy_faults(IsChosen&& is_chosen) {
  std::lock_guard lock(faults_mutex_);
  std::vector<Fault> chosen;
  std::copy_if(faults_.begin(), faults_.end(), std::back_inserter(chosen), is_chosen);
  return chosen;
}

std::vector<Fault> Engine::faults_of(const BatchBuffer& batch) {
  const std::int32_t* const begin = batch.env_ids();
  const std::int32_t* const end = begin + batch.num_rows;
  return copy_faults([&](const Fault& fault) { return batch.is_whole || std::find(begin, end, fault.env_id) != end; });
}

std::vector<Fault> Engine::received_faults() {
  return copy_faults([this](const Fault& fault) { return in_flight_[fault.env_id] == 0; });
}

template <class IsChosen>
void Engine::erase_faults(IsChosen&& is_chosen) {
  std::lock_guard lock(faults_mutex_);
  // In place: on_fault() relies on the capacity.
  std::erase_if(faults_, [&](const Fault& fault) {
    if (!is_chosen(fault)) return false;
    has_fault_[fault.env_id] = 0;
    return true;
  });
  num_faults_.store(static_cast<std::int64_t>(faults_.size()), std::memory_order_release);
}

void Engine::clear_received_faults() {
  erase_faults([this](const Fault& fault) { return in_flight_[fault.env_id] == 0; });
}

void Engine::drop_faults(const std::int32_t* env_ids, std::int64_t count) {
  if (!has_faults() || count == 0) [[likely]]
    return;
  erase_faults([=](const Fault& fault) {
    return env_ids == nullptr || std::find(env_ids, env_ids + count, fault.env_id) != env_ids + count;
  });
}

bool Engine::close(std::int64_t timeout_ns) {
  closed_ = true;
  job_.cancel();
  const std::int64_t deadline = now_ns() + timeout_ns;
  const bool pool_left = thread_pool_.stop(timeout_ns);
  const bool stand_in_left = helper_thread_.stop(timeout_ns < 0 ? -1 : std::max<std::int64_t>(deadline - now_ns(), 0));
  return pool_left && stand_in_left;
}

}  // namespace envfleet::engine
