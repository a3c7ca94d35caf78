// Board: the caller's side of Python envs on workers, as executors/rows/executor.py uses it.
//
// step, send and recv answer False when the call is not plainly right; nothing has moved then, and
// the Python layer converts or explains it. None stands for a time limit that ran out.
//
// board_caller.cc has the calls that envs run for, board_upkeep.cc the rest.
//
// Thread safety: one caller at a time, and who comes second is told so; mark_dead() and stop() are
// for any thread. Holds the GIL but while it waits.
// Invariant: a batch in order that was begun stays in ordered_ until it was given out, also when a
// time limit ran out or Ctrl-C came.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "board_actions.h"
#include "board_batches.h"
#include "board_gate.h"
#include "board_ids.h"
#include "desk.h"

namespace envfleet::bindings {

class Board {
 public:
  Board(nanobind::object buffer, std::int32_t num_envs, std::int32_t num_workers, std::int32_t batch_size,
        std::int32_t autoreset, bool may_spin, double step_timeout_s, nanobind::list obs, nanobind::list finals,
        nanobind::object action, nanobind::object action_space, nanobind::object info, nanobind::object whole_ids, bool copy,
        nanobind::object run_inline, nanobind::object on_overdue);

  // --- stepping --------------------------------------------------------------------------

  nanobind::object step(nanobind::handle actions, nanobind::handle env_ids, double timeout_s);
  bool send(nanobind::handle actions, nanobind::handle env_ids);
  // For actions that the Python layer has checked and stored.
  nanobind::object step_stored(nanobind::handle env_ids, double timeout_s);
  bool send_stored(nanobind::handle env_ids);
  nanobind::object recv(double timeout_s);
  nanobind::object reset(nanobind::handle env_ids, double timeout_s);
  void send_reset(nanobind::handle env_ids);
  // Runs the calls that lie in the mailboxes of these envs; (row, env_id, kind, reply_bytes) of each.
  nanobind::object call(nanobind::handle env_ids);
  nanobind::object observe();
  // False: what is in flight did not end within the limit.
  bool abandon(double timeout_s);

  // --- between batches ---------------------------------------------------------------------

  void seed(nanobind::handle env_ids, nanobind::handle words);
  void set_request_bytes(std::int32_t env_id, std::uint64_t count) { slot_of(env_id).request_bytes = count; }
  void set_phase(std::int32_t env_id, std::uint8_t phase) { slot_of(env_id).phase = phase; }
  // What a slot holds of an env between calls: phase, elapsed_step, pending seed, return so far.
  nanobind::tuple get_standing(std::int32_t env_id);
  void set_standing(std::int32_t env_id, std::uint8_t phase, std::int32_t elapsed_step, std::uint32_t has_seed,
                    std::uint32_t seed_0, std::uint32_t seed_1, std::uint32_t seed_2, std::uint32_t seed_3,
                    double return_now);
  bool was_reset(std::int32_t env_id) { return slot_of(env_id).op == rows::kReset; }
  std::uint32_t next_schema_version() const { return desk_.geometry().header(desk_.base()).schema_version.load() + 1; }
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
  std::int64_t num_in_flight() const { return desk_.num_in_flight(); }
  bool has_late_batch() const { return !ordered_.empty(); }
  // One tuple an env, in the order of rows::Statistics.
  nanobind::list env_statistics() const;
  // (busy_ns, wait_ns) of each worker.
  nanobind::list worker_statistics() const;

  // --- life ----------------------------------------------------------------------------------

  bool is_forked() const { return gate_.is_forked(); }
  // Tells the workers to leave. From here on every call raises. False: another thread is inside a call and
  // did not come out in time.
  bool stop();

 private:
  // Held while a call is inside. Throws when the call has no business there.
  class Guard {
   public:
    explicit Guard(Board& board) : board_(board) {
      board.gate_.enter();
      if (board.is_call_abandoned_) [[unlikely]] {
        try {
          board.finish_abandoned_call();
        } catch (...) {
          board.gate_.leave();
          throw;
        }
      }
    }
    ~Guard() { board_.gate_.leave(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    Board& board_;
  };

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
  std::int64_t num_missing() const;
  void take_ordered();
  nanobind::object finish_ordered(std::int64_t timeout_ns);
  void finish_abandoned_call();
  void end_overdue();
  template <class Missing>
  bool wait_for(Missing&& missing, std::int64_t timeout_ns, bool is_watched = true);

  nanobind::object buffer_;  // keeps the memory
  rows::Desk desk_;
  std::int32_t num_envs_, batch_size_, autoreset_;
  BoardActions actions_;
  BoardBatches batches_;
  nanobind::object run_inline_, on_overdue_;
  BoardGate gate_;
  BoardIds ids_;                               // of the present call
  std::vector<std::int32_t> ordered_, taken_;  // begun in this order; given out last
  bool is_ordered_whole_ = false, is_call_abandoned_ = false;
};

}  // namespace envfleet::bindings
