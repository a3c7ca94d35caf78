// Engine: num_envs native envs, run by the caller's thread and a thread pool of its own.
//
// Two ways through it:
//   start() + finish()  a batch whose rows are the envs asked for, in that order
//   post()  + take()    batch_size rows of whichever envs were finished first
//
// Thread safety: one caller at a time (call_guard.h sees to that); the thread pool is internal.
// Trusts its input: ids are valid, distinct and idle, actions are stored, envs may be
// stepped. checks.h and the Python layer see to that.
//
// Invariant: every env that was started or posted completes its row, also one that throws.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "async_queue.h"
#include "batch_buffer.h"
#include "cost.h"
#include "envfleet/abi.h"
#include "fleet.h"
#include "request.h"
#include "sync_job.h"
#include "tally.h"
#include "thread_count.h"
#include "thread_pool.h"

namespace envfleet::engine {

struct EngineOptions {
  std::int32_t num_envs = 1;
  std::int32_t batch_size = 1;               // below num_envs: asynchronous
  std::int32_t num_threads = 1;              // the caller's included when synchronous
  std::int32_t thread_affinity_offset = -1;  // below 0: not pinned
  std::int32_t max_episode_steps = 0;
  ef_autoreset autoreset = EF_NEXT_STEP;
};

struct Fault {
  std::int32_t env_id;
  std::int32_t method;  // ef_method
  std::string what;
};

// Where actions are stored: a slot an env, one after the other.
struct ActionSlots {
  char* base;
  std::int64_t slot_bytes;
  char* of(std::int32_t env_id) const { return base + env_id * slot_bytes; }
};

// Actions that were checked and are stored by the threads that step their envs, block by block. Not by the caller: the
// slots are in the caches of those threads, and each line of them would have to come over and go back.
struct DeferredActions {
  // For rows begin to end - 1 of the batch.
  void (*store)(const void* context, std::int64_t begin, std::int64_t end);
  const void* context;
};

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  // configs: one set of parameter values, or one an env.
  static std::shared_ptr<Engine> make(const ef_env_type& type, const EngineOptions& options,
                                      const std::vector<const ef_value*>& configs);
  ~Engine();

  // --- synchronous -----------------------------------------------------------------
  // env_ids null: all envs. The batch runs in the caller's thread when that is expected to be faster and may_run_here:
  // a caller with a time limit must get away from an env that was quick so far and now hangs.
  void start(Request request, const std::int32_t* env_ids, std::int64_t num_rows, bool may_run_here = true);
  // The batch that was started; null when it is not done after timeout_ns (negative: no
  // limit). The caller's thread helps unless it may have to leave early.
  BatchBuffer* finish(std::int64_t timeout_ns, bool may_help);
  // start() + finish() in one, with as many threads as measured best. actions null: they are in their slots.
  BatchBuffer* run(Request request, const std::int32_t* env_ids, std::int64_t num_rows,
                   const DeferredActions* actions = nullptr);
  bool has_started() const { return started_ != nullptr; }

  // --- asynchronous ----------------------------------------------------------------
  void post(Request request, const std::int32_t* env_ids, std::int64_t num_rows);
  BatchBuffer* take(std::int64_t timeout_ns);

  // Waits for all that is in flight and throws it away; false after timeout_ns.
  bool abandon(std::int64_t timeout_ns);

  // --- between batches ---------------------------------------------------------------
  void seed(std::int32_t env_id, const std::uint32_t words[4]) { fleet_->type().seed(fleet_->raw(), env_id, words); }
  // Leaves the env in this phase: ENDED makes the next step start its episode.
  void rebuild(std::int32_t env_id, std::uint8_t phase);
  std::string get_state(std::int32_t env_id) { return fleet_->get_state(env_id); }
  // A state that does not fit leaves the env broken.
  void set_state(std::int32_t env_id, const void* data, std::int64_t size);
  // The env may not be stepped until it is rebuilt.
  void mark_broken(std::int32_t env_id);
  // For the resets to come; those in flight keep what they were given. An autoreset has none, as in Gymnasium.
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
  std::uint8_t* in_flight() { return in_flight_.data(); }
  std::atomic<std::int64_t> num_in_flight{0};  // kept with in_flight(); read by anyone
  // True: some env may not be steppable, look at phases(). Otherwise all are.
  bool needs_attention() const { return needs_attention_.load(std::memory_order_relaxed); }
  void set_attention(bool needed) { needs_attention_.store(needed, std::memory_order_relaxed); }
  // What so many envs are expected to take in one thread, as measured; 0: nothing is known yet.
  double expected_ns(Request request, std::int64_t num_rows) {
    return meter(request).estimate() * static_cast<double>(num_rows);
  }
  std::int64_t num_buffers() const { return sync_buffers_->num_allocated(); }
  // By env; rows that were run count, received or not.
  std::vector<EnvTally> tally() { return tally_.read(); }

  // Faults of these envs since they were last asked for.
  bool has_faults() const { return num_faults_.load(std::memory_order_acquire) > 0; }
  std::vector<Fault> take_faults(const std::int32_t* env_ids, std::int64_t count);

  // --- life ----------------------------------------------------------------------------
  // Stops the threads; false: an env did not return within the limit, its thread is left behind.
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
  void publish(double ns_per_row, int num_threads);
  BatchBuffer* hand_over();
  CostMeter& meter(Request request) { return costs_[static_cast<std::size_t>(request)]; }
  // seat: the thread's place in the tally.
  void run_range(Request request, ef_rows& rows, std::int64_t begin, std::int64_t end, int seat,
                 const DeferredActions* actions = nullptr);
  void run_measured(Request request, ef_rows& rows, std::int64_t begin, std::int64_t end, int seat);
  // Blocks of the started batch, this share's first. True: there were some.
  bool run_share(int own_share);
  bool run_async_block(int worker_index);
  bool work(int worker_index);
  void start_threads();
  void start_stand_in();
  std::int64_t async_block_rows(double ns_per_row, std::int64_t num_rows) const;
  template <Request request>
  static void on_fault(void* context, std::int64_t row, std::int32_t env_id, std::int32_t method, const char* what) noexcept;

  const EngineOptions options_;
  const bool may_spin_;
  std::shared_ptr<const ef_spec> spec_;

  // Touched by the caller while no env of theirs runs, by a worker while it does.
  std::vector<char> actions_;
  std::vector<std::uint8_t> phases_;
  std::unique_ptr<FleetHandle> fleet_;
  Tally tally_;

  // The caller's alone.
  std::int64_t action_bytes_ = 0;
  std::vector<std::uint8_t> in_flight_;
  ThreadCountController thread_counts_;
  std::shared_ptr<const ResetOptions> reset_options_ = std::make_shared<ResetOptions>();
  std::vector<std::int32_t> entries_;

  // The batch that start() began; read by whoever claimed a block of it.
  BatchBuffer* started_ = nullptr;
  std::shared_ptr<const ResetOptions> started_options_;
  Request started_request_ = Request::step;
  const DeferredActions* started_actions_ = nullptr;  // of a batch that run() runs

  std::shared_ptr<BufferPool> sync_buffers_, async_buffers_;
  SyncJob job_;
  std::unique_ptr<AsyncQueue> queue_;
  std::vector<std::shared_ptr<const ResetOptions>> posted_options_;  // by env: of the last reset posted
  std::vector<std::unique_ptr<BatchBuffer>> staging_;                // one a worker, the last for the caller
  std::atomic<std::int64_t> async_block_{1};

  // Any thread's.
  std::array<CostMeter, 3> costs_;  // by Request
  std::atomic<bool> closed_{false};
  std::atomic<bool> needs_attention_{true};
  std::atomic<std::int64_t> num_faults_{0};
  std::mutex faults_mutex_;  // taken only when an env threw
  std::vector<Fault> faults_;

  // The thread pool works beside the caller. The stand-in takes the caller's share of batches that the
  // caller does not help with: it goes off to compute, or waits where Ctrl-C reaches it. It is not one
  // of the pool's: one thread more than there are cores would spin, and the caller starve.
  ThreadPool thread_pool_;
  ThreadPool stand_in_;
};

}  // namespace envfleet::engine
