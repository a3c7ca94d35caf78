// NativePool: one engine as Python sees it.
//
// step, send and recv answer False when the call is not plainly right; nothing has moved then, and
// the Python layer converts or explains it. None stands for a time limit that ran out.
//
// Thread safety: one caller at a time, and who comes second is told so; num_in_flight(), has_render() and
// num_buffers() are for any thread. end() is for CallGuard::close().
// Invariant: an env is marked as in flight from when it is under way until its row is given out;
// what throws before that leaves nothing in flight. An observe() that was interrupted is not in flight:
// the next call waits for it and drops it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "batch_arrays.h"
#include "call_guard.h"
#include "checks.h"
#include "engine.h"
#include "given_arrays.h"

namespace envfleet::bindings {

class NativePool {
 public:
  NativePool(const std::string& id, std::int32_t num_envs, std::int32_t batch_size, std::int32_t num_threads,
             std::int32_t thread_affinity_offset, std::int32_t max_episode_steps, std::int32_t autoreset,
             nanobind::list configs, nanobind::object whole_ids);
  ~NativePool();

  // --- calls of the hot path -----------------------------------------------------------

  nanobind::object step(nanobind::handle actions, nanobind::handle env_ids, double timeout_s);
  bool send(nanobind::handle actions, nanobind::handle env_ids);
  nanobind::object recv(double timeout_s);
  // step() and send() as parts of a public method.
  nanobind::object step_checked(nanobind::handle actions, nanobind::handle env_ids, double timeout_s);
  bool send_checked(nanobind::handle actions, nanobind::handle env_ids);
  // The rows come back in the order of env_ids, which the Python layer has checked.
  nanobind::object reset(nanobind::handle env_ids, double timeout_s);
  void send_reset(nanobind::handle env_ids);
  // The present observations of all envs; only between batches.
  nanobind::object observe();

  // --- between batches -------------------------------------------------------------------

  // False: what is in flight did not end within the limit.
  bool abandon(double timeout_s);
  // words: uint32 (rows, 4), one seed for each env.
  void seed(nanobind::handle env_ids, nanobind::handle words);
  void rebuild(std::int32_t env_id, std::uint8_t phase);
  void set_reset_options(std::vector<std::pair<std::string, double>> options);
  nanobind::bytes get_state(std::int32_t env_id);
  void set_state(std::int32_t env_id, nanobind::bytes state);
  // (height, width, rgb bytes)
  nanobind::tuple render(std::int32_t env_id);
  nanobind::dict get_fields(std::int32_t env_id);
  bool set_field(std::int32_t env_id, const std::string& name, nanobind::handle value);

  // --- what is known ---------------------------------------------------------------------

  // One byte an env.
  nanobind::bytes phases();
  nanobind::bytes in_flight();
  // A tuple an env, in the order of statistics.EnvStats. Of envs that take nanoseconds the clock would take
  // longer than the env: times are 0.
  nanobind::list env_statistics();
  std::int64_t num_in_flight() const { return engine_->num_in_flight; }
  // A batch in order was started, or ran into its time limit, and is still to be received.
  bool has_late_batch();
  bool has_render() const { return engine_->spec().has_render != 0; }
  double ns_per_step();
  std::int64_t num_buffers() const { return engine_->num_buffers(); }

  // --- life --------------------------------------------------------------------------------

  engine::CallGuard& call_guard() { return guard_; }
  // Ends the threads. False: an env is stuck; its thread was left behind.
  bool end();

 private:
  // Held while a call is inside.
  template <class Call>
  class Scope {
   public:
    explicit Scope(NativePool& pool) : call_(pool.guard_) {
      if (pool.is_observe_abandoned_) [[unlikely]]
        pool.drop_abandoned_observe();
    }

   private:
    Call call_;
  };

  // Ids that were given: none (all envs), or some, or not plainly right.
  struct Ids {
    bool are_plain = false;
    const std::int32_t* data = nullptr;  // null: all
    std::int64_t count = 0;
  };

  bool is_async() const { return engine_->options().batch_size < engine_->options().num_envs; }
  void check_range(std::int32_t env_id) const {
    if (env_id < 0 || env_id >= engine_->options().num_envs) throw nanobind::index_error("no env of this id");
  }
  Ids plain_ids(nanobind::handle given);
  Ids checked_ids(nanobind::handle given);
  bool accept(const Ids& ids, const GivenActions& actions);
  bool store(const Ids& ids, const GivenActions& actions);

  nanobind::object step_inside(nanobind::handle actions, nanobind::handle env_ids, double timeout_s);
  bool send_inside(nanobind::handle actions, nanobind::handle env_ids);
  void drop_abandoned_observe();
  bool drop_late_batch(std::int64_t timeout_ns);
  bool is_expected_below(double limit_ns, engine::Request request, std::int64_t rows);
  bool runs_at_once(engine::Request request, const Ids& ids, double timeout_s);
  nanobind::object run_at_once(engine::Request request, const Ids& ids, const engine::DeferredActions* actions);
  nanobind::object run(engine::Request request, const Ids& ids, double timeout_s);
  void start(engine::Request request, const Ids& ids, bool may_run_here = true);
  void begin(engine::Request request, const Ids& ids);
  nanobind::object finish(std::int64_t timeout_ns);
  void mark(const std::int32_t* env_ids, std::int64_t count, std::uint8_t flag);
  nanobind::object wrap(engine::BatchBuffer* batch);
  PyObject* faults_of(const engine::BatchBuffer& batch);

  engine::CallGuard guard_;
  std::shared_ptr<engine::Engine> engine_;
  bool is_observe_abandoned_ = false;
  std::optional<engine::IdChecker> ids_;
  std::optional<engine::ActionStore> actions_;
  std::optional<BatchArrays> arrays_;
  std::vector<std::int32_t> whole_;
};

}  // namespace envfleet::bindings
