// NativePool: an engine with native envs, as executors/native.py uses it.
//
// step, send and recv return False if the call is not plainly right; nothing has changed then, and the Python layer
// converts or explains it. None means that a time limit has passed.
//
// Thread safety: one caller at a time; a second one gets an exception. num_in_flight(), has_render() and num_buffers()
// may be called from any thread. end() is for CallGuard::close(). Used with the GIL held, except for the calls without it.
// Invariant: an env is marked as in flight from its start until its row is returned; a call that throws before that
// leaves nothing in flight. An observe() that was interrupted is not in flight: the next call waits for it and drops it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/call_scope.h"
#include "bindings/numpy_arrays.h"
#include "bindings/rows.h"
#include "engine/call_guard.h"
#include "engine/engine.h"
#include "engine/input_checks.h"

namespace envfleet::bindings {

// Turns the batch buffers of one layout into Rows whose arrays share the ownership of the buffer, or into batches.
class BatchArrays {
 public:
  // all_ids: the read-only array 0, 1, 2 ... that serves as env_id in every batch of all envs. batch_type: Batch, if rows
  // without faults have all that belongs to it; otherwise None.
  BatchArrays(const engine::BatchLayout& layout, nanobind::object all_ids, nanobind::object batch_type);
  ~BatchArrays();
  BatchArrays(const BatchArrays&) = delete;
  BatchArrays& operator=(const BatchArrays&) = delete;

  bool makes_batches() const { return batch_class_.has_value(); }
  // These take over the buffer, also if they throw. wrap_plain(): the buffer as a batch without faults.
  Rows wrap(engine::BatchBuffer* buffer) const;
  nanobind::object wrap_plain(engine::BatchBuffer* buffer) const;

 private:
  struct ColumnType {
    PyArray_Descr* descriptor;
    int ndim;
    npy_intp shape[ENVFLEET_MAX_NDIM + 1];
  };
  static nanobind::object own(engine::BatchBuffer* buffer);
  PyObject* env_ids(const engine::BatchBuffer& buffer, PyObject* owner) const;
  PyObject* array(const engine::BatchBuffer& buffer, std::int64_t column, PyObject* owner) const;
  PyObject* arrays(const engine::BatchBuffer& buffer, std::int64_t first, std::int64_t count, PyObject* owner) const;

  engine::BatchLayout layout_;
  std::vector<ColumnType> types_;
  nanobind::object all_ids_;
  std::optional<BatchClass> batch_class_;
};

class NativePool {
 public:
  // configs: the parameters of the env, one dict for all envs or one per env. all_ids, batch_type: see BatchArrays.
  NativePool(const std::string& env_id, const engine::EngineOptions& options, nanobind::list configs,
             nanobind::object all_ids, nanobind::object batch_type);
  ~NativePool();

  // --- stepping ------------------------------------------------------------------------

  nanobind::object step(nanobind::handle actions, nanobind::handle env_ids, double timeout_s);
  bool send(nanobind::handle actions, nanobind::handle env_ids);
  nanobind::object recv(double timeout_s);
  // step() and send() as parts of a public method.
  nanobind::object step_checked(nanobind::handle actions, nanobind::handle env_ids, double timeout_s);
  bool send_checked(nanobind::handle actions, nanobind::handle env_ids);
  // The rows come back in the order of env_ids, which the Python layer has checked.
  nanobind::object reset(nanobind::handle env_ids, double timeout_s);
  void send_reset(nanobind::handle env_ids);
  // The current observations of all envs; only between batches.
  nanobind::object observe();

  // --- stepping without the GIL ----------------------------------------------------------
  //
  // For XLA's threads. Null or false if the call is not plainly right; nothing has changed then, and the same call with
  // the GIL converts or explains it. The caller owns the batch. env_ids null: all envs.

  // On an asynchronous pool: send and recv.
  engine::BatchBuffer* step_without_gil(const ActionArray& actions, const std::int32_t* env_ids, std::int64_t count);
  bool send_without_gil(const ActionArray& actions, const std::int32_t* env_ids, std::int64_t count);
  engine::BatchBuffer* recv_without_gil();
  // With the GIL: the rows of such a batch, with its faults. Takes it over, also if it throws.
  nanobind::object wrap_batch(engine::BatchBuffer* batch) { return wrap(batch); }
  bool has_faults() const { return engine_->has_faults(); }
  const engine::BatchLayout& layout() const { return engine_->sync_layout(); }
  const ef_array& action_space() const { return engine_->spec().action; }

  // --- between batches -------------------------------------------------------------------

  // Returns false if what is in flight did not end within the limit.
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

  // One byte per env.
  nanobind::bytes phases();
  nanobind::bytes in_flight();
  // One dict per env. For any thread at any time.
  nanobind::list env_statistics();
  std::int64_t num_in_flight() const { return engine_->num_in_flight; }
  // An ordered batch was started, or ran into its time limit, and has not been received yet.
  bool has_late_batch();
  bool has_render() const { return engine_->spec().has_render != 0; }
  double ns_per_step();
  std::int64_t num_buffers() const { return engine_->num_buffers(); }

  // --- life --------------------------------------------------------------------------------

  engine::CallGuard& call_guard() { return guard_; }
  // Ends the threads. Returns false if an env is stuck; its thread was left behind.
  bool end();

  // For PoolCall.
  bool has_abandoned_call() const { return is_observe_abandoned_; }
  void finish_abandoned_call();

 private:
  // The envs that a call names.
  struct Ids {
    bool are_plain = false;              // false: not plainly right
    const std::int32_t* data = nullptr;  // null: all envs
    std::int64_t count = 0;
  };

  bool is_async() const { return engine_->options().batch_size < engine_->options().num_envs; }
  void check_range(std::int32_t env_id) const {
    if (env_id < 0 || env_id >= engine_->options().num_envs) throw nanobind::index_error("no env has this id");
  }
  Ids plain_ids(nanobind::handle given);
  Ids plain_ids(const std::int32_t* env_ids, std::int64_t count);
  Ids checked_ids(nanobind::handle given);
  bool accept(const Ids& ids, const ActionArray& actions);
  bool store(const Ids& ids, const ActionArray& actions);

  nanobind::object step_inside(nanobind::handle actions, nanobind::handle env_ids, double timeout_s);
  bool send_inside(nanobind::handle actions, nanobind::handle env_ids);
  void begin_without_gil(engine::Request request, const Ids& ids, bool may_run_here);
  engine::BatchBuffer* finish_without_gil();
  engine::BatchBuffer* receive_without_gil();
  engine::BatchBuffer* run_step(const Ids& ids, const ActionArray& actions);
  bool drop_late_batch(std::int64_t timeout_ns);
  bool is_expected_below(double limit_ns, engine::Request request, std::int64_t rows);
  bool releases_gil(engine::Request request, std::int64_t rows);
  bool runs_at_once(engine::Request request, const Ids& ids, double timeout_s);
  nanobind::object run_at_once(engine::Request request, const Ids& ids);
  nanobind::object run(engine::Request request, const Ids& ids, double timeout_s);
  void start(engine::Request request, const Ids& ids, bool may_run_here = true);
  void begin(engine::Request request, const Ids& ids);
  void post(engine::Request request, const Ids& ids);
  nanobind::object finish(std::int64_t timeout_ns);
  void mark(const std::int32_t* env_ids, std::int64_t count, std::uint8_t flag);
  nanobind::object wrap(engine::BatchBuffer* batch);
  nanobind::object faults_of(const engine::BatchBuffer& batch);

  engine::CallGuard guard_;
  std::shared_ptr<engine::Engine> engine_;
  bool is_observe_abandoned_ = false;
  bool may_block_ = true;
  std::optional<engine::IdChecker> ids_;
  std::optional<engine::ActionStore> actions_;
  std::optional<BatchArrays> arrays_;
  std::vector<std::int32_t> all_ids_;  // for post(), which takes no null
};

// The buffer that holds an array of a batch, given the array's base object; null for other arrays. It lives as long as the
// base object.
engine::BatchBuffer* batch_buffer_of(PyObject* base);

}  // namespace envfleet::bindings
