// Engine: num_envs native envs, run by the caller's thread and a thread pool of its own.
//
// There are two ways to run envs:
//   start() + finish()  an ordered batch: its rows are the given envs, in that order; run() is both in one
//   post()  + take()    batch_size rows of whichever envs finish first
//
// Thread safety: one caller at a time (call_guard.h enforces that); the thread pool is internal.
// Trusts its input: are_idle() or accepts() returned true for it, and actions are stored or given to step().
// Invariants: every env that was started or posted completes its row, also one that throws. An env is in flight from then
// until its row is received or dropped; a call that throws has started nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/async_queue.h"
#include "engine/batch_buffer.h"
#include "engine/cost_meter.h"
#include "engine/counters.h"
#include "engine/fleet_handle.h"
#include "engine/input_checks.h"
#include "engine/last_observations.h"
#include "engine/row_checks.h"
#include "engine/sync_job.h"
#include "engine/thread_count.h"
#include "engine/thread_pool.h"
#include "envfleet/abi.h"

namespace envfleet::engine {

struct EngineOptions {
  std::int32_t num_envs = 1;
  std::int32_t batch_size = 1;               // below num_envs: asynchronous
  std::int32_t num_threads = 1;              // including the caller's in a synchronous pool
  std::int32_t thread_affinity_offset = -1;  // below 0: not pinned
  std::int32_t max_episode_steps = 0;
  ef_autoreset autoreset = EF_NEXT_STEP;
  bool keeps_last_obs = false;  // the row of an env that throws has its last observation; otherwise zeros
  bool check_finite = false;    // rewards and observations that are NaN or infinite are faults of their envs
};

struct Fault {
  std::int32_t env_id;
  std::int32_t method;  // ef_method
  std::string what;
};

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  // configs: one set of parameter values for all envs, or one per env.
  static std::shared_ptr<Engine> make(const ef_env_type& type, const EngineOptions& options,
                                      const std::vector<const ef_value*>& configs);
  ~Engine();

  // --- the input of a call -----------------------------------------------------------
  // Whether these envs are in range, distinct and idle. env_ids null: all envs.
  bool are_idle(const std::int32_t* env_ids, std::int64_t count);
  // Whether these envs are idle and may be stepped, and actions of this dtype can be stored. Looks at no action.
  bool accepts(const GivenActions& actions);
  // Stores actions that it accepts. Returns false if some are not in the space; the slots must not be used then.
  bool store(const GivenActions& actions) {
    return store_.store(action_slots(), actions.data, actions.dtype, actions.env_ids, actions.count);
  }

  // --- synchronous -----------------------------------------------------------------
  // env_ids null: all envs. The batch runs in the caller's thread if that is expected to be faster and may_run_here is
  // set: a caller with a time limit must not be stuck in an env that was fast so far and now hangs.
  void start(Request request, const std::int32_t* env_ids, std::int64_t num_rows, bool may_run_here = true);
  // Returns the batch that was started, or null if it is not done after timeout_ns (negative: no limit). may_help: the
  // caller's thread may run envs too.
  BatchBuffer* finish(std::int64_t timeout_ns, bool may_help);
  // start() and finish() in one, with the number of threads that was measured to be best.
  BatchBuffer* run(Request request, const std::int32_t* env_ids, std::int64_t num_rows) {
    return run_batch(request, env_ids, num_rows, nullptr);
  }
  // The same for a step with these actions, which it stores. Returns null, and runs no env, if some are not in the space.
  BatchBuffer* step(const GivenActions& actions) {
    return run_batch(Request::step, actions.env_ids, actions.count, &actions);
  }
  bool has_ordered_batch() const { return started_ != nullptr; }
  // Takes the last batch that was received back, which finish() then returns once more. No other may be started.
  void put_back(BatchBuffer* batch);

  // --- asynchronous ----------------------------------------------------------------
  void post(Request request, const std::int32_t* env_ids, std::int64_t num_rows);
  BatchBuffer* take(std::int64_t timeout_ns);

  // Waits for everything in flight and drops it, faults included. Returns false after timeout_ns; what is still in flight
  // can be received or dropped later.
  bool drop_pending(std::int64_t timeout_ns);

  const std::uint8_t* in_flight() const { return in_flight_.data(); }  // by env
  // For any thread.
  std::int64_t num_in_flight() const { return num_in_flight_.load(std::memory_order_relaxed); }

  // --- faults ------------------------------------------------------------------------
  //
  // Kept until they are cleared, or the env is reset or rebuilt or gets a state. For any thread: has_faults().
  bool has_faults() const { return num_faults_.load(std::memory_order_acquire) > 0; }
  std::vector<Fault> faults_of(const BatchBuffer& batch);
  // Of envs whose rows have been received.
  std::vector<Fault> received_faults();
  void clear_received_faults();

  // --- between batches ---------------------------------------------------------------
  void seed(std::int32_t env_id, const std::uint32_t words[4]) { fleet_->type().seed(fleet_->raw(), env_id, words); }
  // Leaves the env in this phase; with ENDED, the next step starts its episode (step_rule.h).
  void rebuild(std::int32_t env_id, std::uint8_t phase);
  std::string get_state(std::int32_t env_id);
  // A state that the env refuses leaves it broken.
  void set_state(std::int32_t env_id, const void* data, std::int64_t size);
  // The env may not be stepped until it is rebuilt.
  void mark_broken(std::int32_t env_id);
  // For later resets; those in flight keep their options. Autoresets have none, as in Gymnasium.
  void set_reset_options(std::vector<std::pair<std::string, double>> options);
  const FleetHandle& fleet() const { return *fleet_; }

  // --- what is known -----------------------------------------------------------------
  const EngineOptions& options() const { return options_; }
  const ef_spec& spec() const { return *spec_; }
  const BatchLayout& sync_layout() const { return sync_buffers_->layout(); }
  ActionSlots action_slots() { return {actions_.data(), action_bytes_}; }
  char* action_slot(std::int32_t env_id) { return actions_.data() + action_bytes_ * env_id; }
  std::int64_t action_bytes() const { return action_bytes_; }
  const std::uint8_t* phases() const { return phases_.data(); }
  // The time that num_rows envs are expected to take in one thread, as measured; 0 until something was measured.
  double expected_ns(Request request, std::int64_t num_rows) {
    return meter(request).estimate() * static_cast<double>(num_rows);
  }
  std::int64_t num_buffers() const { return sync_buffers_->num_allocated(); }
  // By env. Rows that were run are counted whether or not they have been received.
  std::vector<EnvStatistics> statistics() { return counters_.read(); }

  // --- life ----------------------------------------------------------------------------
  // Stops the threads. Returns false if an env did not return within the limit; its thread is left behind.
  bool close(std::int64_t timeout_ns);
  bool is_closed() const { return closed_; }

 private:
  Engine(const ef_env_type& type, const EngineOptions& options, const std::vector<const ef_value*>& configs);

  struct ResetOptions {
    std::vector<std::pair<std::string, double>> values;
    std::vector<ef_option> raw;  // points into values
  };

  int pool_size() const { return is_async() ? options_.num_threads : options_.num_threads - 1; }
  bool is_async() const { return options_.batch_size < options_.num_envs; }
  void fill_in(ef_rows& rows, Request request, const ResetOptions* options);
  void prepare(Request request, const std::int32_t* env_ids, std::int64_t num_rows);
  void publish(std::int64_t num_rows, double ns_per_row, int num_threads, int num_to_leave = 0);
  // Lets this thread and num_threads - 1 others run the batch, or store its actions, and waits for them.
  void run_shared(std::int64_t num_rows, double ns_per_row, int num_threads);
  BatchBuffer* run_batch(Request request, const std::int32_t* env_ids, std::int64_t num_rows, const GivenActions* actions);
  // Stores the actions of a batch by all threads, and returns whether all are in the space.
  bool store_shared(const GivenActions& actions, double ns_per_row, int num_threads);
  // Stores the actions of rows begin to end - 1, or valid ones if some are not in the space; then returns false.
  bool store_block(const GivenActions& actions, std::int64_t begin, std::int64_t end);
  bool may_step(const std::int32_t* env_ids, std::int64_t count);
  BatchBuffer* hand_over();
  void mark_in_flight(const std::int32_t* env_ids, std::int64_t count, bool is_in_flight);
  void mark_received(const BatchBuffer& batch) {
    mark_in_flight(batch.is_whole ? nullptr : batch.env_ids(), batch.num_rows, false);
  }
  CostMeter& meter(Request request) { return costs_[static_cast<std::size_t>(request)]; }
  // shard: the thread's shard of the counters. actions: to be stored first; null: they are stored.
  void run_range(Request request, ef_rows& rows, std::int64_t begin, std::int64_t end, int shard,
                 const GivenActions* actions = nullptr);
  // Keeps the observations of these rows, which were run just now, and writes the last ones into those that failed.
  void keep_last_obs(const ef_rows& rows, std::int64_t begin, std::int64_t end);
  // After set_state(): keeps what the env shows now.
  void keep_observed(std::int32_t env_id);
  // Breaks the envs of these rows whose rewards or observations are NaN or infinite.
  void refuse_non_finite(const ef_rows& rows, std::int64_t begin, std::int64_t end) noexcept;
  void run_measured(Request request, ef_rows& rows, std::int64_t begin, std::int64_t end, int shard);
  // Runs blocks of the started batch, or stores their actions, those of this part first; see SyncJob::run_blocks().
  // Returns true if there were any.
  bool run_part(int own_part, bool leaves_none = false);
  bool run_async_block(int worker_index);
  bool work(int worker_index);
  void start_threads();
  void start_helper_thread();
  std::int64_t async_block_rows(double ns_per_row, std::int64_t num_rows) const;
  template <Request request>
  static void on_fault(void* context, std::int64_t row, std::int32_t env_id, std::int32_t method, const char* what) noexcept;
  template <class IsChosen>
  std::vector<Fault> copy_faults(IsChosen&& is_chosen);
  template <class IsChosen>
  void erase_faults(IsChosen&& is_chosen);
  // env_ids null: all.
  void drop_faults(const std::int32_t* env_ids, std::int64_t count);

  const EngineOptions options_;
  const bool may_spin_;
  std::shared_ptr<const ef_spec> spec_;

  // Entries are used by the caller while their env is idle, and by a worker while it runs.
  std::vector<char> actions_;
  std::vector<std::uint8_t> phases_;
  std::unique_ptr<FleetHandle> fleet_;
  const ActionStore store_;
  std::optional<RowChecks> row_checks_;  // with check_finite
  Counters counters_;
  std::optional<LastObservations> last_obs_;  // with keeps_last_obs
  std::int64_t max_kept_rows_ = 1;            // so many are kept while they are still in the first-level cache

  // Used by the caller's thread only.
  std::int64_t action_bytes_ = 0;
  std::vector<std::uint8_t> in_flight_;
  std::atomic<std::int64_t> num_in_flight_{0};  // flags set in in_flight_; read by any thread
  IdChecker id_checker_;
  ThreadCountController thread_counts_;
  std::int64_t num_published_ = 0;
  std::shared_ptr<const ResetOptions> reset_options_ = std::make_shared<ResetOptions>();
  std::vector<std::int32_t> entries_;

  std::shared_ptr<const ResetOptions> started_options_;

  // The batch that start() began; read by threads that have claimed a block of it. In one cache line: it changes with
  // every batch, and every thread then waits for it.
  alignas(64) BatchBuffer* started_ = nullptr;
  // That the threads store, block by block: if the caller's thread did, each cache line of the slots would travel from the
  // other threads' caches and back.
  GivenActions started_actions_{};
  Request started_request_ = Request::step;
  bool is_storing_ = false;               // the threads store actions and run no envs yet
  std::atomic<bool> are_refused_{false};  // some action that they stored is not in the space
  int measured_part_ = 0;                 // the part whose thread measures what a row costs

  alignas(64) std::shared_ptr<BufferPool> sync_buffers_;
  std::shared_ptr<BufferPool> async_buffers_;
  SyncJob job_;
  std::unique_ptr<AsyncQueue> queue_;
  std::vector<std::shared_ptr<const ResetOptions>> posted_options_;  // by env: the options of the last reset that was posted
  std::vector<std::unique_ptr<BatchBuffer>> staging_;                // one per worker, the last for the caller
  std::atomic<std::int64_t> async_block_{1};

  // Used by any thread.
  std::array<CostMeter, 3> costs_;  // by Request
  std::atomic<bool> closed_{false};
  std::atomic<bool> may_be_unsteppable_{true};  // false: all envs may be stepped; true: phases_ tells
  std::atomic<std::int64_t> num_faults_{0};
  std::mutex faults_mutex_;              // taken only when an env threw
  std::vector<Fault> faults_;            // with room for one per env: on_fault() must not allocate
  std::vector<std::uint8_t> has_fault_;  // by env: whether faults_ has one of it

  // The thread pool works beside the caller. The helper thread takes the caller's part of batches that the caller does
  // not help with, because it computes something else or waits where Ctrl-C reaches it. It does not belong to the pool:
  // one spinning thread more than there are cores would starve the caller.
  ThreadPool thread_pool_;
  ThreadPool helper_thread_;
};

}  // namespace envfleet::engine
