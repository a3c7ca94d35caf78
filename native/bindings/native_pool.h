// NativePool: an engine with native envs, as executors/native.py uses it.
//
// step, send and recv return False if the call is not plainly right; nothing has changed then, and the Python layer
// converts or explains it. None means that a time limit has passed. Otherwise they return a raw Batch, which the Python
// layer finishes: obs is the array of a single observation or else a tuple of columns, info {} or a tuple of columns, final
// None or a tuple (obs columns, elapsed_step, info columns).
//
// Thread safety: one caller at a time; a second one gets an exception. num_in_flight(), has_render() and num_buffers()
// may be called from any thread. end() is for CallGuard::close(). Used with the GIL held, except for the calls without it.
// Invariant: a batch that is returned or discarded with faults leaves the guard marked as unreported.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/batch_class.h"
#include "bindings/call_scope.h"
#include "bindings/numpy_arrays.h"
#include "engine/call_guard.h"
#include "engine/engine.h"

namespace envfleet::bindings {

// Turns the batch buffers of one layout into raw batches whose arrays share the ownership of the buffer.
class BatchArrays {
 public:
  // all_ids: the read-only array 0, 1, 2 ... that serves as env_id in every batch of all envs. has_single_obs: an
  // observation is the array of its only column.
  BatchArrays(const engine::BatchLayout& layout, nanobind::object all_ids, nanobind::object batch_type, bool has_single_obs);
  ~BatchArrays();
  BatchArrays(const BatchArrays&) = delete;
  BatchArrays& operator=(const BatchArrays&) = delete;

  // Takes over the buffer, also if this throws.
  nanobind::object wrap(engine::BatchBuffer* buffer, nanobind::tuple faults) const;

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
  PyObject* finals(const engine::BatchBuffer& buffer, PyObject* owner) const;

  engine::BatchLayout layout_;
  std::vector<ColumnType> types_;
  nanobind::object all_ids_;
  BatchClass batch_class_;
  const bool has_single_obs_;
};

class NativePool {
 public:
  struct PythonOptions {
    nanobind::object all_ids, batch_type;  // see BatchArrays
    nanobind::object fault_type;           // batch.Fault
    bool has_single_obs = false;
  };
  // configs: the parameters of the env, one dict for all envs or one per env.
  NativePool(const std::string& env_id, const engine::EngineOptions& options, nanobind::list configs, PythonOptions python);
  ~NativePool();

  // --- stepping ------------------------------------------------------------------------

  // On an asynchronous pool: a send and the first batch_size rows.
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
  // For XLA's threads. The caller owns the batches.

  // What a call returns that steps or receives: nothing if it was refused, and nothing has changed then; the same call with
  // the GIL converts or explains it. Null if the rows are still to be received: with a time limit, and without the GIL also
  // if one of the envs raised or the pool is being closed; recv() with the GIL returns or explains them.
  using Received = std::optional<engine::BatchBuffer*>;

  Received step_without_gil(const engine::GivenActions& actions);
  bool send_without_gil(const engine::GivenActions& actions);
  Received recv_without_gil();
  const engine::BatchLayout& layout() const { return engine_->sync_layout(); }
  const ef_array& action_space() const { return engine_->spec().action; }

  // --- between batches -------------------------------------------------------------------

  // Returns false if what is in flight, an observe() that was interrupted included, did not end within the limit.
  bool drop_pending(double timeout_s);
  // Of rows that were returned or discarded.
  nanobind::tuple unreported_faults();
  // Also in the guard: an exception between two calls would leave it waiting for faults that are gone.
  void clear_faults();
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
  std::int64_t num_in_flight() const { return engine_->num_in_flight(); }
  // An ordered batch was started, or ran into its time limit, and has not been received yet.
  bool has_ordered_batch();
  bool has_render() const { return engine_->spec().has_render != 0; }
  double ns_per_step();
  std::int64_t num_buffers() const { return engine_->num_buffers(); }

  // --- life --------------------------------------------------------------------------------

  engine::CallGuard& call_guard() { return guard_; }
  // Ends the threads. Returns false if an env is stuck; its thread was left behind.
  bool end();

 private:
  class WithGil;
  class WithoutGil;
  // The envs that a call names.
  struct Ids {
    const std::int32_t* data = nullptr;  // null: all envs
    std::int64_t count = 0;
  };

  bool is_async() const { return engine_->options().batch_size < engine_->options().num_envs; }
  void check_range(std::int32_t env_id) const {
    if (env_id < 0 || env_id >= engine_->options().num_envs) throw nanobind::index_error("no env has this id");
  }
  Ids checked_ids(nanobind::handle given);
  engine::GivenActions read_step(nanobind::handle actions, nanobind::handle env_ids) const;
  bool is_expected_below(double limit_ns, engine::Request request, std::int64_t rows);
  bool releases_gil(engine::Request request, std::int64_t rows);

  // With the GIL and without: wait is a WithGil or a WithoutGil.
  template <class Wait>
  Received step_with(const engine::GivenActions& actions, const Wait& wait);
  template <class Wait>
  bool send_with(const engine::GivenActions& actions, const Wait& wait);
  template <class Wait>
  Received receive(const Wait& wait);
  template <class Wait>
  void begin(engine::Request request, const Ids& ids, const Wait& wait);
  template <class Wait>
  engine::BatchBuffer* run(engine::Request request, const Ids& ids, const Wait& wait);
  template <class Wait>
  bool runs_at_once(engine::Request request, std::int64_t rows, const Wait& wait);
  template <class Wait>
  engine::BatchBuffer* finish(const Wait& wait);

  nanobind::object result_of(const Received& received);
  nanobind::object wrap(engine::BatchBuffer* batch);
  void discard(engine::BatchBuffer* batch);
  bool has_faults(const engine::BatchBuffer& batch) { return engine_->has_faults() && !engine_->faults_of(batch).empty(); }
  Received put_back_faults(const Received& received);
  nanobind::tuple make_faults(const std::vector<engine::Fault>& faults) const;

  engine::CallGuard guard_;
  std::shared_ptr<engine::Engine> engine_;
  bool may_block_ = true;
  std::optional<BatchArrays> arrays_;
  nanobind::object fault_type_;
  std::vector<std::int32_t> all_ids_;  // for post(), which takes no null
};

// The buffer that holds an array of a batch, given the array's base object; null for other arrays. It lives as long as the
// base object.
engine::BatchBuffer* batch_buffer_of(PyObject* base);

}  // namespace envfleet::bindings
