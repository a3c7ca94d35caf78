// PythonPool: the caller's side of Python envs on workers, as executors/python/executor.py uses it.
//
// step, send and recv return False if the call is not plainly right; nothing has changed then, and the Python layer
// converts or explains it. None means that a time limit has passed.
//
// A batch of plain rows (one observation array, no final rows, no replies in the side channel) is returned as Rows. Any
// other batch is made by executor.make_batch(rows) inside the call, before the pool is free for the next one: it reads
// the replies.
//
// Thread safety: one caller at a time; a second one gets an exception. mark_dead(), is_dead(), worker_of(),
// current_env(), num_in_flight() and interrupt() may be called from any thread. Holds the GIL except while it waits.
// Invariant: an ordered batch that was begun stays in ordered_ until it is returned, also after a time limit or Ctrl-C. A
// call() that was interrupted is not in flight: the next call of the pool waits for it and drops its replies.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/call_scope.h"
#include "bindings/info_schema.h"
#include "bindings/kept_column.h"
#include "bindings/numpy_arrays.h"
#include "bindings/rows.h"
#include "engine/call_guard.h"
#include "engine/input_checks.h"
#include "shm/caller_queue.h"

namespace envfleet::bindings {

struct PythonPoolOptions {
  nanobind::object buffer;  // the memory that the caller and the workers share, as a uint8 array
  std::int32_t num_envs = 0, num_workers = 0, batch_size = 0;
  std::int32_t autoreset = 0;     // ef_autoreset
  bool may_spin = false;          // before the caller sleeps
  double step_timeout_s = -1;     // negative: none
  nanobind::list obs, final_obs;  // arrays over the buffer, one per stored leaf of an observation
  nanobind::list kept;            // see KeptColumn; empty for pools that do not restart envs
  nanobind::object action;        // the array of the actions, if they are one; otherwise None
  nanobind::object action_space;  // a dict of executors/python/layout.py; None: Python stores actions
  nanobind::object info;          // the array of the info columns
  nanobind::object all_ids;       // the read-only array 0, 1, 2 ..., env_id of every whole batch
  bool copy = true;               // false: whole batches are views of the buffer
  bool is_plain = false;          // observations are one array, and there are no final rows
  nanobind::object run_inline;    // run_inline(deadline_ns) runs the requests in the caller's thread, or None
  nanobind::object on_overdue;    // on_overdue(worker) kills a worker that exceeds the step timeout, or None
};

// The envs that a call names.
// Invariant: the ids that were accepted last are distinct and in range, and were idle.
class CallIds {
 public:
  explicit CallIds(std::int32_t num_envs) : num_envs_(num_envs), checker_(num_envs) {}

  // None: all envs. Returns false, and keeps the old ids, if the given ones are not plainly right.
  bool accept(const shm::CallerQueue& queue, nanobind::handle given);

  const std::vector<std::int32_t>& list() const { return list_; }
  std::int64_t count() const { return static_cast<std::int64_t>(list_.size()); }
  // All envs in their own order.
  bool is_whole() const { return is_whole_; }
  // Null: all envs.
  const std::int32_t* data_or_null() const { return is_whole_ ? nullptr : list_.data(); }

 private:
  std::int32_t num_envs_;
  engine::IdChecker checker_;
  std::vector<std::int32_t> list_;
  bool is_whole_ = false, has_all_ = false;  // has_all_: list_ holds all ids already
};

// Checks actions that are one array and stores them in their column.
class ActionColumnStore {
 public:
  ActionColumnStore(nanobind::handle column, nanobind::dict space);

  // Returns false if the actions are not plainly right. env_ids null: row i is for env i.
  bool store(nanobind::handle given, const std::int32_t* env_ids, std::int64_t count) const;

 private:
  // The action space in the form that ActionStore takes; owns what the ef_array points to.
  struct Space {
    explicit Space(nanobind::dict given);
    ef_array array{};
    std::vector<double> low, high;
    std::vector<std::int64_t> nvec;
  };

  Column column_;
  Space space_;
  engine::ActionStore store_;
};

class PythonPool {
 public:
  explicit PythonPool(const PythonPoolOptions& options);

  // --- stepping --------------------------------------------------------------------------

  nanobind::object step(nanobind::handle executor, nanobind::handle actions, nanobind::handle env_ids, double timeout_s);
  bool send(nanobind::handle actions, nanobind::handle env_ids);
  // For actions that the Python layer has checked and stored.
  nanobind::object step_stored(nanobind::handle executor, nanobind::handle env_ids, double timeout_s);
  bool send_stored(nanobind::handle env_ids);
  nanobind::object recv(nanobind::handle executor, double timeout_s);
  nanobind::object reset(nanobind::handle executor, nanobind::handle env_ids, double timeout_s);
  void send_reset(nanobind::handle env_ids);
  // Runs the calls that were put into the side channel for these envs; returns a list of Reply.
  nanobind::object call(nanobind::handle env_ids);
  // The stored leaves of the last observations of all envs.
  nanobind::list observe();
  nanobind::object elapsed_steps();
  // Returns false if what is in flight did not end within the limit.
  bool abandon(double timeout_s);
  // --- between batches -------------------------------------------------------------------

  void seed(nanobind::handle env_ids, nanobind::handle words);
  // With kept columns: makes the last observation that the env delivered its row again; is_rejected: the row that was
  // just collected does not count as delivered.
  void restore_last_obs(std::int32_t env_id, bool is_rejected);
  // Makes the row of an env its last observation.
  void keep_obs(std::int32_t env_id);
  void set_request_bytes(std::int32_t env_id, std::uint64_t count);
  void set_phase(std::int32_t env_id, std::uint8_t phase);
  // What a slot holds of the episode in progress: phase, elapsed_step, seed (pending; or None), current_return.
  nanobind::dict get_episode(std::int32_t env_id);
  void set_episode(std::int32_t env_id, nanobind::kwargs given);
  bool was_reset(std::int32_t env_id);
  std::uint32_t next_schema_version();
  void publish_schema(nanobind::list entries, std::uint64_t count);

  void mark_dead(std::int32_t worker) { queue_.mark_dead(worker); }
  void revive(std::int32_t worker);
  bool is_dead(std::int32_t worker) const { return queue_.is_dead(worker); }
  bool is_at_prompt(std::int32_t worker) const { return queue_.is_at_prompt(worker); }
  std::int32_t worker_of(std::int32_t env_id) const { return queue_.layout().worker_of(env_id); }
  std::int32_t current_env(std::int32_t worker) const { return queue_.worker(worker).current_env.load(); }

  // --- what is known ---------------------------------------------------------------------

  // One byte per env.
  nanobind::bytes phases();
  nanobind::bytes in_flight();
  // Steps and resets only: recv() never returns a call().
  std::int64_t num_in_flight() const { return num_in_flight_.load(std::memory_order_relaxed); }
  bool has_late_batch();
  // One dict per env. This and worker_statistics() are for any thread at any time.
  nanobind::list env_statistics();
  // (busy_ns, wait_ns) of each worker.
  nanobind::list worker_statistics();

  // --- life --------------------------------------------------------------------------------

  engine::CallGuard& call_guard() { return guard_; }
  // Tells the workers to leave and ends a call that waits for them. For CallGuard::close().
  void interrupt();
  // For PoolCall.
  bool has_abandoned_call() const { return is_call_abandoned_; }
  void finish_abandoned_call();

 private:
  using Whole = PoolCall<WholeCall>;
  using Part = PoolCall<PartialCall>;

  bool is_async() const { return batch_size_ < num_envs_; }
  shm::Slot& slot_of(std::int32_t env_id) {
    if (env_id < 0 || env_id >= num_envs_) throw nanobind::index_error("no env has this id");
    return queue_.slot(env_id);
  }
  void set_checked_ids(nanobind::handle given) {
    if (!ids_.accept(queue_, given)) refuse_ids();
  }

  bool may_step() const;
  bool store(nanobind::handle actions) const;
  void clear_requests();
  void post(shm::Op op);
  void begin(shm::Op op);
  void begin_ordered(shm::Op op);
  void count_in_flight(std::int64_t change) { num_in_flight_.store(num_in_flight() + change, std::memory_order_relaxed); }
  std::int64_t num_missing() const;
  void take_ordered();
  nanobind::object finish_ordered(nanobind::handle executor, std::int64_t timeout_ns);
  nanobind::object make_batch(nanobind::handle executor, const std::int32_t* env_ids, std::int64_t count);
  void kill_overdue();
  template <class Missing>
  bool wait_for(Missing&& missing, std::int64_t timeout_ns, bool is_watched = true);

  // Rows as arrays. env_ids null: all envs.
  Rows rows_of(const std::int32_t* env_ids, std::int64_t count, nanobind::object replies) const;
  void settle_obs(std::int32_t env_id);
  nanobind::object replies_of(const std::int32_t* env_ids, std::int64_t count) const;
  void set_numbers(Rows& rows, const std::int32_t* env_ids, std::int64_t count) const;
  void set_final_rows(Rows& rows, const std::int32_t* env_ids, std::int64_t count) const;
  PyObject* unpack_info(const std::int32_t* env_ids, std::int64_t count, bool is_final) const;

  nanobind::object buffer_;  // keeps the memory alive
  shm::CallerQueue queue_;
  const std::int32_t num_envs_, batch_size_, autoreset_;
  std::optional<ActionColumnStore> actions_;  // empty: the Python layer stores them
  std::vector<Column> obs_, final_obs_;
  std::vector<KeptColumn> kept_;
  Column info_;
  InfoSchema schema_;
  nanobind::object all_ids_;
  const bool copy_, is_plain_;
  nanobind::object run_inline_, on_overdue_;
  engine::CallGuard guard_;
  CallIds ids_;                                // of the current call
  std::vector<std::int32_t> ordered_, taken_;  // begun in this order; returned last
  bool is_ordered_whole_ = false, is_call_abandoned_ = false;
  std::atomic<std::int64_t> num_in_flight_{0};  // written by the caller, read by any thread
};

}  // namespace envfleet::bindings
