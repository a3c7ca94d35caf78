// Board: the caller's side of Python envs on workers, as executors/rows/executor.py uses it.
//
// step, send and recv answer False when the call is not plainly right; nothing has moved then, and
// the Python layer converts or explains it. None stands for a time limit that ran out.
//
// board_caller.cc has the calls that envs run for, board_upkeep.cc the rest.
//
// A batch that is more than a tuple of arrays (nested observations, last rows, something in the mail) is
// made by executor.make_batch(), which the call runs before it lets anyone else in: mail is read there.
//
// Thread safety: one caller at a time, and who comes second is told so. mark_dead(), is_dead(),
// worker_of(), current_env(), num_in_flight() and interrupt() are for any thread. Holds the GIL but
// while it waits.
// Invariant: a batch in order that was begun stays in ordered_ until it was given out, also when a
// time limit ran out or Ctrl-C came. A call() that was interrupted is not in flight: the next call of
// the pool waits for it and drops its answers.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "board_actions.h"
#include "board_batches.h"
#include "board_ids.h"
#include "call_guard.h"
#include "caller.h"
#include "desk.h"

namespace envfleet::bindings {

class Board {
 public:
  Board(nanobind::object buffer, std::int32_t num_envs, std::int32_t num_workers, std::int32_t batch_size,
        std::int32_t autoreset, bool may_spin, double step_timeout_s, nanobind::list obs, nanobind::list finals,
        nanobind::object action, nanobind::object action_space, nanobind::object info, nanobind::object whole_ids, bool copy,
        bool is_plain, nanobind::object run_inline, nanobind::object on_overdue);

  // --- stepping --------------------------------------------------------------------------

  // A batch comes as a tuple if the layout is plain and nothing is in the mail, else as executor.make_batch() made it.
  nanobind::object step(nanobind::handle executor, nanobind::handle actions, nanobind::handle env_ids, double timeout_s);
  bool send(nanobind::handle actions, nanobind::handle env_ids);
  // For actions that the Python layer has checked and stored.
  nanobind::object step_stored(nanobind::handle executor, nanobind::handle env_ids, double timeout_s);
  bool send_stored(nanobind::handle env_ids);
  nanobind::object recv(nanobind::handle executor, double timeout_s);
  nanobind::object reset(nanobind::handle executor, nanobind::handle env_ids, double timeout_s);
  void send_reset(nanobind::handle env_ids);
  // Runs the calls that lie in the mailboxes of these envs; (row, env_id, kind, reply_bytes) of each.
  nanobind::object call(nanobind::handle env_ids);
  nanobind::object observe();
  // False: what is in flight did not end within the limit.
  bool abandon(double timeout_s);

  // --- between batches ---------------------------------------------------------------------

  // Waits for a call() that was interrupted; before anything is written to the mailboxes that its envs may read.
  void finish_abandoned_call() { Part part(*this); }
  void seed(nanobind::handle env_ids, nanobind::handle words);
  void set_request_bytes(std::int32_t env_id, std::uint64_t count);
  void set_phase(std::int32_t env_id, std::uint8_t phase);
  // What a slot holds of an env between calls: phase, elapsed_step, pending seed, return so far.
  nanobind::tuple get_standing(std::int32_t env_id);
  void set_standing(std::int32_t env_id, std::uint8_t phase, std::int32_t elapsed_step, std::uint32_t has_seed,
                    std::uint32_t seed_0, std::uint32_t seed_1, std::uint32_t seed_2, std::uint32_t seed_3,
                    double return_now);
  bool was_reset(std::int32_t env_id);
  std::uint32_t next_schema_version();
  void publish_schema(nanobind::list entries, std::uint64_t count);

  void mark_dead(std::int32_t worker) { desk_.mark_dead(worker); }
  void revive(std::int32_t worker);
  bool is_dead(std::int32_t worker) const { return desk_.is_dead(worker); }
  std::int32_t worker_of(std::int32_t env_id) const { return desk_.geometry().worker_of(env_id); }
  std::int32_t current_env(std::int32_t worker) const {
    return desk_.geometry().worker(desk_.base(), worker).current_env.load();
  }

  // --- what is known -------------------------------------------------------------------------

  // One byte an env.
  nanobind::bytes phases();
  nanobind::bytes in_flight();
  // Steps and resets alone: a call() is nothing that recv() would give out.
  std::int64_t num_in_flight() const { return num_in_flight_.load(std::memory_order_relaxed); }
  bool has_late_batch();
  // One tuple an env, in the order of rows::Statistics.
  nanobind::list env_statistics();
  // (busy_ns, wait_ns) of each worker.
  nanobind::list worker_statistics();

  // --- life ----------------------------------------------------------------------------------

  engine::CallGuard& call_guard() { return guard_; }
  // Tells the workers to leave and a call that waits for them to look up. For CallGuard::close().
  void interrupt();

 private:
  // Held while a call is inside.
  template <class Call>
  class Scope {
   public:
    explicit Scope(Board& board) : call_(board.guard_) {
      if (board.is_call_abandoned_) [[unlikely]]
        board.drop_abandoned_call();
    }

   private:
    Call call_;
  };
  using Whole = Scope<WholeCall>;
  using Part = Scope<PartialCall>;

  bool is_async() const { return batch_size_ < num_envs_; }
  rows::Slot& slot_of(std::int32_t env_id) {
    if (env_id < 0 || env_id >= num_envs_) throw nanobind::index_error("no env of this id");
    return desk_.slot(env_id);
  }
  void set_checked_ids(nanobind::handle given) {
    if (!ids_.accept(desk_, given)) refuse_ids();
  }

  bool may_step() const;
  bool accept(nanobind::handle actions);
  void clear_mail();
  void post(rows::Op op);
  void begin(rows::Op op);
  void begin_ordered(rows::Op op);
  void count_in_flight(std::int64_t change) { num_in_flight_.store(num_in_flight() + change, std::memory_order_relaxed); }
  std::int64_t num_missing() const;
  void take_ordered();
  nanobind::object finish_ordered(nanobind::handle executor, std::int64_t timeout_ns);
  nanobind::object give_out(nanobind::handle executor, const std::int32_t* env_ids, std::int64_t count);
  void drop_abandoned_call();
  void end_overdue();
  template <class Missing>
  bool wait_for(Missing&& missing, std::int64_t timeout_ns, bool is_watched = true);

  nanobind::object buffer_;  // keeps the memory
  rows::Desk desk_;
  std::int32_t num_envs_, batch_size_, autoreset_;
  BoardActions actions_;
  BoardBatches batches_;
  const bool is_plain_;
  nanobind::object run_inline_, on_overdue_;
  engine::CallGuard guard_;
  BoardIds ids_;                               // of the present call
  std::vector<std::int32_t> ordered_, taken_;  // begun in this order; given out last
  bool is_ordered_whole_ = false, is_call_abandoned_ = false;
  std::atomic<std::int64_t> num_in_flight_{0};  // written by the caller, read by anyone
};

}  // namespace envfleet::bindings
