// PythonPool: the caller's side of Python envs on workers, as executors/python/executor.py uses it.
//
// step, send and recv return False if the call is not plainly right, or if an earlier call left something behind (see
// CallGuard); nothing has changed then, and the Python layer converts or explains it. None means that a time limit has
// passed.
//
// A batch is returned as an envfleet.core.batch.Batch that is complete if its rows are plain: one observation array, no
// final rows, no replies in the side channel. Otherwise obs, final and faults hold the columns and replies of which the
// Python layer makes their final form (see make_batch()).
//
// Interruption: recv() and drop_pending() are as if they had not begun. A step, reset or call that is interrupted lets its
// envs finish for a moment and discards their rows, or leaves them in flight, for drop_pending(), and the pool interrupted.
//
// Thread safety: one caller at a time; a second one gets an exception. mark_dead(), is_dead(), worker_of(),
// current_env(), num_in_flight() and interrupt() may be called from any thread. Holds the GIL except while it waits.
// Invariants: an ordered batch that was begun stays in ordered_ until it is returned or discarded. An env that raised in a
// row that was taken is in faults_ until it is rebuilt or reset, or clear_faults() is called.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/batch_class.h"
#include "bindings/call_scope.h"
#include "bindings/info_schema.h"
#include "bindings/kept_column.h"
#include "bindings/numpy_arrays.h"
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
  bool is_single = false;         // an observation is one array
  nanobind::object batch_type;    // envfleet.core.batch.Batch
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

// What an env sent beside its row, or as the result of a call().
struct Reply {
  std::int64_t row;  // of the batch
  std::int32_t env_id;
  bool is_fault, is_lost;   // it raised; its worker died
  bool was_reset;           // the row is that of a reset
  std::uint64_t num_bytes;  // in the side channel; 0: nothing
};

class PythonPool {
 public:
  explicit PythonPool(const PythonPoolOptions& options);

  // --- stepping --------------------------------------------------------------------------

  // On an asynchronous pool: send() and recv(). False, too, if fewer than batch_size envs would be in flight.
  nanobind::object step(nanobind::handle actions, nanobind::handle env_ids, double timeout_s);
  bool send(nanobind::handle actions, nanobind::handle env_ids);
  // For actions that the Python layer has checked and stored.
  nanobind::object step_stored(nanobind::handle env_ids, double timeout_s);
  bool send_stored(nanobind::handle env_ids);
  nanobind::object recv(double timeout_s);
  nanobind::object reset(nanobind::handle env_ids, double timeout_s);
  void send_reset(nanobind::handle env_ids);
  // Runs the calls that were put into the side channel for these envs; returns a list of Reply.
  nanobind::list call(nanobind::handle env_ids);
  // The stored leaves of the last observations of all envs.
  nanobind::list observe();
  nanobind::object elapsed_steps();
  // Discards what is in flight, calls included. Returns false if it did not end within the limit.
  bool drop_pending(double timeout_s);
  // The faults of rows that were taken, as a list of Reply.
  nanobind::list faults();
  void clear_faults();

  // --- between batches -------------------------------------------------------------------

  void seed(nanobind::handle env_ids, nanobind::handle words);
  // The row of this env, which was just taken, counts as that of an env that raised: its reply cannot be read.
  void reject_row(std::int32_t env_id);
  // An env was built again; it has not begun an episode.
  void finish_rebuild(std::int32_t env_id, std::uint8_t phase);
  // Makes the row of an env its last observation.
  void keep_obs(std::int32_t env_id);
  // Forgets earlier messages to these envs. Returns false if the ids are not plainly right.
  bool clear_requests(nanobind::handle env_ids);
  void set_request_bytes(std::int32_t env_id, std::uint64_t count);
  void set_phase(std::int32_t env_id, std::uint8_t phase);
  // What a slot holds of the episode in progress: phase, elapsed_step, seed (pending; or None), current_return.
  nanobind::dict get_episode(std::int32_t env_id);
  void set_episode(std::int32_t env_id, nanobind::kwargs given);
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
  bool has_ordered_batch();
  // One dict per env. This and worker_statistics() are for any thread at any time.
  nanobind::list env_statistics();
  // (busy_ns, wait_ns) of each worker.
  nanobind::list worker_statistics();

  // --- life --------------------------------------------------------------------------------

  engine::CallGuard& call_guard() { return guard_; }
  // Tells the workers to leave and ends a call that waits for them. For CallGuard::close().
  void interrupt();

 private:
  bool is_async() const { return batch_size_ < num_envs_; }
  shm::Slot& slot_of(std::int32_t env_id) {
    if (env_id < 0 || env_id >= num_envs_) throw nanobind::index_error("no env has this id");
    return queue_.slot(env_id);
  }
  void set_checked_ids(nanobind::handle given) {
    if (!ids_.accept(queue_, given)) refuse_ids();
  }

  bool accept_step(nanobind::handle env_ids);
  bool would_fill() const;
  bool store(nanobind::handle actions) const;
  void forget_requests();
  void post(shm::Op op);
  void begin(shm::Op op);
  void begin_ordered(shm::Op op);
  void count_in_flight(std::int64_t change) { num_in_flight_.store(num_in_flight() + change, std::memory_order_relaxed); }
  std::int64_t num_missing() const;

  void kill_overdue();
  template <class Missing>
  bool is_complete(Missing&& missing, bool is_watched);
  template <class Missing>
  bool attempt(Missing&& missing, std::int64_t slice_ns, bool is_watched);
  template <class Missing>
  bool run_here(Missing&& missing, std::int64_t timeout_ns);
  template <class Missing>
  bool wait_for(Missing&& missing, std::int64_t timeout_ns);
  template <class Missing, class Discard>
  bool wait_or_discard_rows(Missing&& missing, std::int64_t timeout_ns, bool is_watched, Discard&& discard);

  nanobind::object receive_or_discard(CallScope& call, double timeout_s);
  std::int64_t num_rows_missing() const { return ordered_.empty() ? batch_size_ - queue_.num_collected() : num_missing(); }
  void take_ordered();
  void take_rows();
  void settle(std::int32_t env_id);
  void forget_fault(std::int32_t env_id);
  Reply reply_of(std::int64_t row, std::int32_t env_id) const;

  // The rows of taken_ as arrays.
  nanobind::object make_batch(CallScope& call) const;
  PyObject* obs_rows(const std::int32_t* env_ids, std::int64_t count) const;
  PyObject* replies(const std::int32_t* env_ids, std::int64_t count) const;
  void set_numbers(const nanobind::object& batch, const std::int32_t* env_ids, std::int64_t count) const;
  PyObject* final_rows(const std::int32_t* env_ids, std::int64_t count) const;
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
  const BatchClass batch_class_;
  const bool copy_, is_single_;
  nanobind::object run_inline_, on_overdue_;
  engine::CallGuard guard_;
  CallIds ids_;                                             // of the current call
  std::vector<std::int32_t> ordered_;                       // the batch, or the call, that was begun in this order
  std::vector<std::int32_t> taken_;                         // the rows that were taken last
  bool is_ordered_whole_ = false, is_taken_whole_ = false;  // all envs in their own order
  std::vector<Reply> faults_;
  std::atomic<std::int64_t> num_in_flight_{0};  // written by the caller, read by any thread
};

}  // namespace envfleet::bindings
