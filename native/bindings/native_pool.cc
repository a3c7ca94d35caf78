// In one file, so that a step is inlined as a whole.
#include "bindings/native_pool.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <deque>

#include "bindings/bindings.h"
#include "bindings/env_types.h"
#include "bindings/fields_access.h"
#include "bindings/python_calls.h"
#include "engine/env_types.h"
#include "envfleet/rows.h"

namespace nb = nanobind;

namespace envfleet::bindings {

using engine::BatchBuffer;
using engine::Engine;
using engine::Request;

namespace {

constexpr double kHoldGilNs = 10'000;          // shorter work of envs that never block keeps the GIL
constexpr double kPatientNs = 20'000'000;      // longer work is left to the thread pool, so that Ctrl-C is handled
constexpr std::int64_t kSliceNs = 50'000'000;  // how long a wait without the GIL lasts until it looks for close()
constexpr const char* kCapsuleName = "envfleet.batch";

using Whole = PoolCall<WholeCall>;
using Part = PoolCall<PartialCall>;

void release_buffer(PyObject* capsule) {
  engine::BufferPool::release(static_cast<engine::BatchBuffer*>(PyCapsule_GetPointer(capsule, kCapsuleName)));
}

}  // namespace

BatchBuffer* batch_buffer_of(PyObject* base) {
  if (base == nullptr || !PyCapsule_IsValid(base, kCapsuleName)) return nullptr;
  return static_cast<BatchBuffer*>(PyCapsule_GetPointer(base, kCapsuleName));
}

// ---------------------------------------------------------------------------- batches

BatchArrays::BatchArrays(const engine::BatchLayout& layout, nb::object all_ids, nb::object batch_type)
    : layout_(layout), all_ids_(std::move(all_ids)) {
  if (!batch_type.is_none()) batch_class_.emplace(std::move(batch_type));
  for (const engine::ColumnLayout& column : layout.columns) {
    ColumnType type{PyArray_DescrFromType(numpy_type(column.dtype)), 1, {}};
    if (column.array != nullptr) {
      type.ndim = 1 + column.array->ndim;
      for (int axis = 0; axis < column.array->ndim; ++axis) type.shape[axis + 1] = column.array->shape[axis];
    }
    types_.push_back(type);
  }
}

BatchArrays::~BatchArrays() {
  for (ColumnType& type : types_) Py_DECREF(type.descriptor);
}

// The object that the arrays of the buffer share: the buffer is released with it.
nb::object BatchArrays::own(BatchBuffer* buffer) {
  PyObject* capsule = PyCapsule_New(buffer, kCapsuleName, release_buffer);
  if (capsule == nullptr) {
    engine::BufferPool::release(buffer);
    throw nb::python_error();
  }
  return nb::steal(capsule);
}

Rows BatchArrays::wrap(BatchBuffer* buffer) const {
  const nb::object shared = own(buffer);
  PyObject* owner = shared.ptr();
  Rows rows;
  rows.set(Rows::kObs, arrays(*buffer, layout_.obs(0), layout_.num_obs, owner));
  rows.set(Rows::kReward, array(*buffer, layout_.reward(), owner));
  rows.set(Rows::kTerminated, array(*buffer, layout_.terminated(), owner));
  rows.set(Rows::kTruncated, array(*buffer, layout_.truncated(), owner));
  rows.set(Rows::kEnvId, env_ids(*buffer, owner));
  rows.set(Rows::kElapsedStep, array(*buffer, layout_.elapsed_step(), owner));
  rows.set(Rows::kInfo, arrays(*buffer, layout_.info(0), layout_.num_info, owner));
  if (layout_.with_finals) {
    rows.set(Rows::kFinalObs, arrays(*buffer, layout_.final_obs(0), layout_.num_obs, owner));
    rows.set(Rows::kFinalElapsedStep, array(*buffer, layout_.final_elapsed_step(), owner));
    rows.set(Rows::kFinalInfo, arrays(*buffer, layout_.final_info(0), layout_.num_info, owner));
  }
  return rows;
}

nb::object BatchArrays::wrap_plain(BatchBuffer* buffer) const {
  const nb::object shared = own(buffer);
  PyObject* owner = shared.ptr();
  nb::object batch = batch_class_->make();
  const auto set = [&](BatchClass::Slot slot, PyObject* value) { batch_class_->set(batch, slot, value); };
  set(BatchClass::kObs, array(*buffer, layout_.obs(0), owner));
  set(BatchClass::kReward, array(*buffer, layout_.reward(), owner));
  set(BatchClass::kTerminated, array(*buffer, layout_.terminated(), owner));
  set(BatchClass::kTruncated, array(*buffer, layout_.truncated(), owner));
  set(BatchClass::kEnvId, env_ids(*buffer, owner));
  set(BatchClass::kElapsedStep, array(*buffer, layout_.elapsed_step(), owner));
  set(BatchClass::kInfo, PyDict_New());
  set(BatchClass::kFinal, Py_NewRef(Py_None));
  set(BatchClass::kFaults, PyTuple_New(0));
  return batch;
}

// Here and below: a new reference, or null with a Python error set.
PyObject* BatchArrays::env_ids(const BatchBuffer& buffer, PyObject* owner) const {
  return buffer.is_whole ? Py_NewRef(all_ids_.ptr()) : array(buffer, layout_.env_id(), owner);
}

PyObject* BatchArrays::array(const BatchBuffer& buffer, std::int64_t column, PyObject* owner) const {
  const ColumnType& type = types_[column];
  npy_intp shape[ENVFLEET_MAX_NDIM + 1];
  shape[0] = buffer.num_rows;
  for (int axis = 1; axis < type.ndim; ++axis) shape[axis] = type.shape[axis];
  Py_INCREF(type.descriptor);
  return wrap_memory(type.descriptor, type.ndim, shape, buffer.column(column), Py_NewRef(owner));
}

// A tuple of arrays.
PyObject* BatchArrays::arrays(const BatchBuffer& buffer, std::int64_t first, std::int64_t count, PyObject* owner) const {
  PyObject* tuple = PyTuple_New(count);
  for (std::int64_t i = 0; tuple != nullptr && i < count; ++i) {
    PyObject* made = array(buffer, first + i, owner);
    PyTuple_SET_ITEM(tuple, i, made);
    if (made == nullptr) Py_CLEAR(tuple);
  }
  return tuple;
}

// ------------------------------------------------------------------------------- life

NativePool::NativePool(const std::string& env_id, const engine::EngineOptions& options, nb::list configs, nb::object all_ids,
                       nb::object batch_type) {
  const ef_env_type& type = env_type_of(env_id);
  may_block_ = engine::may_block(type);
  std::deque<ConfigValues> values;  // a deque: its elements are never moved
  for (nb::handle config : configs) values.emplace_back(type, nb::cast<nb::dict>(config));
  std::vector<const ef_value*> raw;
  for (const ConfigValues& value : values) raw.push_back(value.data());
  engine_ = without_gil_if(true, [&] { return Engine::make(type, options, raw); });
  ids_.emplace(options.num_envs);
  actions_.emplace(engine_->spec().action);
  arrays_.emplace(engine_->sync_layout(), std::move(all_ids), std::move(batch_type));
}

NativePool::~NativePool() {
  if (engine_ == nullptr) return;
  if (guard_.is_forked()) {
    // Its threads stayed with the parent and cannot be joined here: leaked on purpose.
    new std::shared_ptr<Engine>(std::move(engine_));
    return;
  }
  end();
  without_gil_if(may_block_, [&] { engine_.reset(); });  // destroys the envs
}

bool NativePool::end() {
  if (engine_->is_closed()) return true;
  return without_gil_if(true, [&] { return engine_->close(kCloseTimeoutNs); });
}

// --------------------------------------------------------------------------- stepping

NativePool::Ids NativePool::plain_ids(nb::handle given) {
  if (given.is_none()) return plain_ids(nullptr, engine_->options().num_envs);
  const IdArray ids = read_ids(given);
  return ids.data == nullptr ? Ids{} : plain_ids(ids.data, ids.count);
}

NativePool::Ids NativePool::plain_ids(const std::int32_t* env_ids, std::int64_t count) {
  if (env_ids == nullptr) return {engine_->num_in_flight == 0, nullptr, engine_->options().num_envs};
  const std::uint8_t* in_flight = engine_->in_flight();
  const auto is_in_flight = [in_flight](std::int32_t env_id) { return in_flight[env_id] != 0; };
  if (!ids_->accepts(env_ids, count, is_in_flight)) return {};
  return {true, env_ids, count};
}

bool NativePool::accept(const Ids& ids, const ActionArray& actions) {
  return actions.dtype >= 0 && actions_->takes(actions.dtype) && may_step(*engine_, ids.data, ids.count);
}

bool NativePool::store(const Ids& ids, const ActionArray& actions) {
  return actions_->store(engine_->action_slots(), actions.data, actions.dtype, ids.data, ids.count);
}

NativePool::Ids NativePool::checked_ids(nb::handle given) {
  const Ids ids = plain_ids(given);
  if (!ids.are_plain) refuse_ids();
  return ids;
}

bool NativePool::is_expected_below(double limit_ns, Request request, std::int64_t rows) {
  const double expected = engine_->expected_ns(request, rows);
  return expected > 0 && expected < limit_ns;
}

// An env of unknown code may wait for something at any time, however short its steps were so far. Other Python threads go
// on meanwhile: it may be one of them that it waits for.
bool NativePool::releases_gil(Request request, std::int64_t rows) {
  return may_block_ || !is_expected_below(kHoldGilNs, request, rows);
}

void NativePool::mark(const std::int32_t* env_ids, std::int64_t count, std::uint8_t flag) {
  std::uint8_t* in_flight = engine_->in_flight();
  if (env_ids == nullptr) {
    std::fill_n(in_flight, count, flag);
  } else {
    for (std::int64_t begin = 0; begin < count; begin += detail::kGroupRows) {
      const std::int64_t size = std::min<std::int64_t>(count - begin, detail::kGroupRows);
      if (detail::is_consecutive(env_ids + begin, size)) {
        std::fill_n(in_flight + env_ids[begin], size, flag);
      } else {
        for (std::int64_t i = begin; i < begin + size; ++i) in_flight[env_ids[i]] = flag;
      }
    }
  }
  engine_->num_in_flight += flag != 0 ? count : -count;
}

// An ordered batch. Its envs are marked once it runs: if this throws, nothing is in flight.
void NativePool::start(Request request, const Ids& ids, bool may_run_here) {
  const bool release = releases_gil(request, ids.count);
  without_gil_if(release, [&] { engine_->start(request, ids.data, ids.count, may_run_here); });
  mark(ids.data, ids.count, 1);
}

void NativePool::begin(Request request, const Ids& ids) {
  if (!is_async()) return start(request, ids);
  const bool release = releases_gil(request, ids.count);
  without_gil_if(release, [&] { post(request, ids); });
  mark(ids.data, ids.count, 1);
}

void NativePool::post(Request request, const Ids& ids) {
  const std::int32_t* data = ids.data;
  if (data == nullptr) {
    all_ids_.resize(ids.count);
    for (std::int64_t i = 0; i < ids.count; ++i) all_ids_[i] = static_cast<std::int32_t>(i);
    data = all_ids_.data();
  }
  engine_->post(request, data, ids.count);
}

nb::object NativePool::finish(std::int64_t timeout_ns) {
  BatchBuffer* batch = engine_->finish(0, false);
  if (batch == nullptr) {
    batch = wait_in_slices(guard_, timeout_ns, [&](std::int64_t slice) { return engine_->finish(slice, false); });
  }
  if (batch == nullptr) return nb::none();
  mark(batch->is_whole ? nullptr : batch->env_ids(), batch->num_rows, 0);
  return wrap(batch);
}

nb::object NativePool::wrap(BatchBuffer* batch) {
  nb::object faults;
  if (engine_->has_faults()) [[unlikely]] {
    try {
      faults = faults_of(*batch);
    } catch (...) {
      engine::BufferPool::release(batch);
      throw;
    }
  }
  if (arrays_->makes_batches() && !faults.is_valid()) return arrays_->wrap_plain(batch);
  Rows rows = arrays_->wrap(batch);
  if (faults.is_valid()) rows.set(Rows::kFaults, std::move(faults));
  return rows.release();
}

// A list of (env_id, method, what).
nb::object NativePool::faults_of(const BatchBuffer& batch) {
  nb::list list;
  const std::int32_t* env_ids = batch.is_whole ? nullptr : batch.env_ids();
  for (const engine::Fault& fault : engine_->take_faults(env_ids, batch.num_rows)) {
    list.append(nb::make_tuple(fault.env_id, fault.method, to_text(fault.what)));
  }
  return list;
}

// Whether a batch runs from start to end in one call of the engine. A batch that may take long, or whose cost is not known
// yet, is left to the thread pool: Ctrl-C is not handled while the caller's thread is inside an env.
bool NativePool::runs_at_once(Request request, const Ids& ids, double timeout_s) {
  return timeout_s < 0 && is_expected_below(kPatientNs, request, ids.count);
}

nb::object NativePool::run_at_once(Request request, const Ids& ids) {
  // Done before this call ends, so its envs are never seen in flight.
  const bool release = releases_gil(request, ids.count);
  return wrap(without_gil_if(release, [&] { return engine_->run(request, ids.data, ids.count); }));
}

// Returns null if some of the actions are not in the space.
BatchBuffer* NativePool::run_step(const Ids& ids, const ActionArray& actions) {
  // Values and no references, in one cache line: every thread reads it.
  struct alignas(64) Context {
    const engine::ActionStore* store;
    engine::ActionSlots slots;
    const char* actions;
    const std::int32_t* env_ids;
    std::int64_t count;
    std::int32_t row_bytes, dtype;
  } const context{&*actions_,
                  engine_->action_slots(),
                  static_cast<const char*>(actions.data),
                  ids.data,
                  ids.count,
                  static_cast<std::int32_t>(actions_->row_bytes(actions.dtype)),
                  actions.dtype};
  const auto accepts = [](const void* raw) {
    const Context& own = *static_cast<const Context*>(raw);
    return own.store->accepts(own.actions, own.dtype, own.count);
  };
  const auto store_rows = [](const void* raw, std::int64_t begin, std::int64_t end) {
    const Context& own = *static_cast<const Context*>(raw);
    engine::ActionSlots slots = own.slots;
    const std::int32_t* env_ids = own.env_ids;
    if (env_ids != nullptr) {
      env_ids += begin;
    } else {
      slots.base += begin * slots.slot_bytes;
    }
    return own.store->store_valid(slots, own.actions + begin * own.row_bytes, own.dtype, env_ids, end - begin);
  };
  const engine::GivenActions given{accepts, store_rows, &context, ids.count * context.row_bytes};
  return engine_->run(Request::step, ids.data, ids.count, &given);
}

nb::object NativePool::run(Request request, const Ids& ids, double timeout_s) {
  if (runs_at_once(request, ids, timeout_s)) return run_at_once(request, ids);
  start(request, ids, timeout_s < 0);
  return finish(to_ns(timeout_s));
}

nb::object NativePool::step_inside(nb::handle given, nb::handle env_ids, double timeout_s) {
  const Ids ids = plain_ids(env_ids);
  if (!ids.are_plain || engine_->has_started()) return nb::bool_(false);
  const ActionArray actions = read_actions(given, engine_->spec().action, ids.count);
  if (!accept(ids, actions)) return nb::bool_(false);
  if (!runs_at_once(Request::step, ids, timeout_s)) {
    if (!store(ids, actions)) return nb::bool_(false);
    return run(Request::step, ids, timeout_s);
  }
  const bool release = releases_gil(Request::step, ids.count);
  BatchBuffer* batch = without_gil_if(release, [&] { return run_step(ids, actions); });
  return batch == nullptr ? nb::object(nb::bool_(false)) : wrap(batch);
}

bool NativePool::send_inside(nb::handle given, nb::handle env_ids) {
  const Ids ids = plain_ids(env_ids);
  if (!ids.are_plain || (engine_->has_started() && !is_async())) return false;
  const ActionArray actions = read_actions(given, engine_->spec().action, ids.count);
  if (!accept(ids, actions) || !store(ids, actions)) return false;
  begin(Request::step, ids);
  return true;
}

nb::object NativePool::step(nb::handle actions, nb::handle env_ids, double timeout_s) {
  const Whole call(*this);
  return step_inside(actions, env_ids, timeout_s);
}

nb::object NativePool::step_checked(nb::handle actions, nb::handle env_ids, double timeout_s) {
  const Part call(*this);
  return step_inside(actions, env_ids, timeout_s);
}

bool NativePool::send(nb::handle actions, nb::handle env_ids) {
  const Whole call(*this);
  return send_inside(actions, env_ids);
}

bool NativePool::send_checked(nb::handle actions, nb::handle env_ids) {
  const Part call(*this);
  return send_inside(actions, env_ids);
}

nb::object NativePool::recv(double timeout_s) {
  const Whole call(*this);
  const std::int64_t timeout_ns = to_ns(timeout_s);
  // An ordered batch that ran into its time limit comes first, also in an asynchronous pool.
  if (engine_->has_started()) return finish(timeout_ns);
  if (!is_async() || engine_->num_in_flight < engine_->options().batch_size) return nb::bool_(false);
  BatchBuffer* batch = engine_->take(0);
  if (batch == nullptr) batch = wait_in_slices(guard_, timeout_ns, [&](std::int64_t slice) { return engine_->take(slice); });
  if (batch == nullptr) return nb::none();
  mark(batch->env_ids(), batch->num_rows, 0);
  return wrap(batch);
}

// ------------------------------------------------------------------ stepping without the GIL

void NativePool::begin_without_gil(Request request, const Ids& ids, bool may_run_here) {
  if (is_async()) {
    post(request, ids);
  } else {
    engine_->start(request, ids.data, ids.count, may_run_here);
  }
  mark(ids.data, ids.count, 1);
}

// Waits for the batch that was started. Null when close() interrupts it.
BatchBuffer* NativePool::finish_without_gil() {
  BatchBuffer* batch = nullptr;
  while (batch == nullptr && !guard_.is_cancelled()) batch = engine_->finish(kSliceNs, false);
  if (batch != nullptr) mark(batch->is_whole ? nullptr : batch->env_ids(), batch->num_rows, 0);
  return batch;
}

BatchBuffer* NativePool::receive_without_gil() {
  if (engine_->has_started()) return finish_without_gil();
  if (!is_async() || engine_->num_in_flight < engine_->options().batch_size) return nullptr;
  BatchBuffer* batch = nullptr;
  while (batch == nullptr && !guard_.is_cancelled()) batch = engine_->take(kSliceNs);
  if (batch != nullptr) mark(batch->env_ids(), batch->num_rows, 0);
  return batch;
}

BatchBuffer* NativePool::step_without_gil(const ActionArray& actions, const std::int32_t* env_ids, std::int64_t count) {
  const CallWithoutGil call(guard_);
  if (!call.may_go_on() || is_observe_abandoned_ || engine_->has_started()) return nullptr;
  const Ids ids = plain_ids(env_ids, count);
  if (!ids.are_plain || !accept(ids, actions)) return nullptr;
  if (is_async()) {
    if (engine_->num_in_flight + ids.count < engine_->options().batch_size || !store(ids, actions)) return nullptr;
    begin_without_gil(Request::step, ids, true);
    return receive_without_gil();
  }
  if (!is_expected_below(kPatientNs, Request::step, ids.count)) {
    if (!store(ids, actions)) return nullptr;
    begin_without_gil(Request::step, ids, true);
    return finish_without_gil();
  }
  return run_step(ids, actions);
}

bool NativePool::send_without_gil(const ActionArray& actions, const std::int32_t* env_ids, std::int64_t count) {
  const CallWithoutGil call(guard_);
  if (!call.may_go_on() || is_observe_abandoned_ || (engine_->has_started() && !is_async())) return false;
  const Ids ids = plain_ids(env_ids, count);
  if (!ids.are_plain || !accept(ids, actions) || !store(ids, actions)) return false;
  begin_without_gil(Request::step, ids, true);
  return true;
}

BatchBuffer* NativePool::recv_without_gil() {
  const CallWithoutGil call(guard_);
  if (!call.may_go_on() || is_observe_abandoned_) return nullptr;
  return receive_without_gil();
}

// ------------------------------------------------------------------------------- with the GIL

nb::object NativePool::reset(nb::handle env_ids, double timeout_s) {
  const Part call(*this);
  const Ids ids = checked_ids(env_ids);
  return run(Request::reset, ids, timeout_s);
}

void NativePool::send_reset(nb::handle env_ids) {
  const Part call(*this);
  begin(Request::reset, checked_ids(env_ids));
}

nb::object NativePool::observe() {
  const Part call(*this);
  const std::int64_t num_envs = engine_->options().num_envs;
  if (is_expected_below(kPatientNs, Request::observe, num_envs)) return run(Request::observe, {true, nullptr, num_envs}, -1);
  // Not marked as in flight: recv() must not return an observe() that was interrupted.
  without_gil_if(true, [&] { engine_->start(Request::observe, nullptr, num_envs); });
  is_observe_abandoned_ = true;
  BatchBuffer* batch = wait_in_slices(guard_, -1, [&](std::int64_t slice) { return engine_->finish(slice, false); });
  is_observe_abandoned_ = false;
  return wrap(batch);
}

void NativePool::finish_abandoned_call() {
  BatchBuffer* batch = wait_in_slices(guard_, -1, [&](std::int64_t slice) { return engine_->finish(slice, false); });
  is_observe_abandoned_ = false;
  engine_->take_faults(nullptr, 0);  // of the observe() alone: nothing else was in flight
  engine::BufferPool::release(batch);
}

bool NativePool::has_late_batch() {
  const Part call(*this);
  return engine_->has_started();
}

// ------------------------------------------------------------------- between batches

// Waits for a late ordered batch and drops it. Returns false after timeout_ns.
bool NativePool::drop_late_batch(std::int64_t timeout_ns) {
  if (!engine_->has_started()) return true;
  engine::BatchBuffer* late =
      wait_in_slices(guard_, timeout_ns, [&](std::int64_t slice) { return engine_->finish(slice, false); });
  if (late == nullptr) return false;
  // Before anything else: Ctrl-C may come before the rest is done, and recv() would wait for these rows forever.
  mark(late->is_whole ? nullptr : late->env_ids(), late->num_rows, 0);
  engine_->take_faults(late->is_whole ? nullptr : late->env_ids(), late->num_rows);
  engine::BufferPool::release(late);
  return true;
}

bool NativePool::abandon(double timeout_s) {
  const Part call(*this);
  const std::int64_t timeout_ns = to_ns(timeout_s);
  const std::int64_t start = engine::now_ns();
  if (!drop_late_batch(timeout_ns)) return false;
  const std::int64_t rest = timeout_ns < 0 ? -1 : std::max<std::int64_t>(timeout_ns - (engine::now_ns() - start), 0);
  if (!wait_in_slices(guard_, rest, [&](std::int64_t slice) { return engine_->abandon(slice); })) return false;
  std::fill_n(engine_->in_flight(), engine_->options().num_envs, 0);
  engine_->num_in_flight = 0;
  engine_->take_faults(nullptr, 0);
  return true;
}

void NativePool::seed(nb::handle env_ids, nb::handle words) {
  const Part call(*this);
  const Ids ids = checked_ids(env_ids);
  const std::uint32_t* data = read_seeds(words, ids.count);
  for (std::int64_t i = 0; i < ids.count; ++i) engine_->seed(ids.data != nullptr ? ids.data[i] : i, data + 4 * i);
}

void NativePool::rebuild(std::int32_t env_id, std::uint8_t phase) {
  const Part call(*this);
  check_range(env_id);
  without_gil_if(may_block_, [&] { engine_->rebuild(env_id, phase); });
}

void NativePool::set_reset_options(std::vector<std::pair<std::string, double>> options) {
  const Part call(*this);
  engine_->set_reset_options(std::move(options));
}

nb::bytes NativePool::get_state(std::int32_t env_id) {
  const Part call(*this);
  check_range(env_id);
  const std::string state = without_gil_if(may_block_, [&] { return engine_->get_state(env_id); });
  return nb::bytes(state.data(), state.size());
}

void NativePool::set_state(std::int32_t env_id, nb::bytes state) {
  const Part call(*this);
  check_range(env_id);
  const auto size = static_cast<std::int64_t>(state.size());
  without_gil_if(may_block_, [&] { engine_->set_state(env_id, state.c_str(), size); });
}

nb::tuple NativePool::render(std::int32_t env_id) {
  const Part call(*this);
  check_range(env_id);
  std::int32_t height = 0, width = 0;
  std::vector<std::uint8_t> pixels;
  without_gil_if(may_block_, [&] {
    engine_->fleet().render(env_id, [&](std::int32_t rows, std::int32_t columns, const std::uint8_t* rgb) {
      height = rows, width = columns;
      pixels.assign(rgb, rgb + static_cast<std::size_t>(rows) * columns * 3);
    });
  });
  return nb::make_tuple(height, width, nb::bytes(pixels.data(), pixels.size()));
}

nb::dict NativePool::get_fields(std::int32_t env_id) {
  const Part call(*this);
  check_range(env_id);
  return read_fields(engine_->fleet(), env_id);
}

bool NativePool::set_field(std::int32_t env_id, const std::string& name, nb::handle value) {
  const Part call(*this);
  check_range(env_id);
  return write_field(*engine_, env_id, name, value);
}

nb::bytes NativePool::phases() {
  const Part call(*this);
  // The phase of an env in flight is its thread's: it counts as running until its row arrives.
  return bytes_of_envs(engine_->options().num_envs, [&](std::int32_t env_id) -> std::uint8_t {
    return engine_->in_flight()[env_id] != 0 ? EF_RUNNING : engine_->phases()[env_id];
  });
}

nb::bytes NativePool::in_flight() {
  const Part call(*this);
  return nb::bytes(engine_->in_flight(), static_cast<std::size_t>(engine_->options().num_envs));
}

nb::list NativePool::env_statistics() {
  refuse_forked(guard_);  // a thread that stayed with the parent may hold a lock
  nb::list all;
  for (const engine::EnvStatistics& own : engine_->statistics()) all.append(to_python(own));
  return all;
}

double NativePool::ns_per_step() {
  const Part call(*this);
  return engine_->expected_ns(engine::Request::step, 1);
}

// ----------------------------------------------------------------------------- module

void bind_native_pool(nb::module_& module) {
  // Not nb::exception: its translator raises UnicodeDecodeError instead when the text is not UTF-8.
  PyObject* fleet_error = PyErr_NewException("envfleet._native.FleetError", PyExc_Exception, nullptr);
  if (fleet_error == nullptr) throw nb::python_error();
  module.attr("FleetError") = nb::borrow(fleet_error);
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void* type) {
        try {
          std::rethrow_exception(thrown);
        } catch (const engine::FleetError& error) {
          set_error(static_cast<PyObject*>(type), error.what());
        } catch (const engine::ThreadStartError& error) {
          set_error(nb::module_::import_("envfleet.errors").attr("EnvfleetError").ptr(), error.what());
        }
      },
      fleet_error);
  nb::class_<NativePool>(module, "NativePool")
      .def("__init__",
           [](NativePool* self, nb::kwargs given) {
             std::string env_id;
             engine::EngineOptions options;
             std::int32_t autoreset = 0;
             nb::list configs;
             nb::object all_ids, batch_type;
             Keywords("NativePool()", given)
                 .read("env_id", env_id)
                 .read("num_envs", options.num_envs)
                 .read("batch_size", options.batch_size)
                 .read("num_threads", options.num_threads)
                 .read("thread_affinity_offset", options.thread_affinity_offset)
                 .read("max_episode_steps", options.max_episode_steps)
                 .read("autoreset", autoreset)
                 .read("keeps_last_obs", options.keeps_last_obs)
                 .read("check_finite", options.check_finite)
                 .read("configs", configs)
                 .read("all_ids", all_ids)
                 .read("batch_type", batch_type)
                 .finish();
             options.autoreset = static_cast<ef_autoreset>(autoreset);
             new (self) NativePool(env_id, options, configs, all_ids, batch_type);
           })
      .def("step", &NativePool::step, nb::arg("actions").none(), nb::arg("env_ids").none(), nb::arg("timeout_s"))
      .def("send", &NativePool::send, nb::arg("actions").none(), nb::arg("env_ids").none())
      .def("step_checked", &NativePool::step_checked, nb::arg("actions").none(), nb::arg("env_ids").none(),
           nb::arg("timeout_s"))
      .def("send_checked", &NativePool::send_checked, nb::arg("actions").none(), nb::arg("env_ids").none())
      .def("recv", &NativePool::recv, nb::arg("timeout_s"))
      .def("reset", &NativePool::reset, nb::arg("env_ids").none(), nb::arg("timeout_s"))
      .def("send_reset", &NativePool::send_reset, nb::arg("env_ids").none())
      .def("seed", &NativePool::seed, nb::arg("env_ids").none(), nb::arg("words"))
      .def("observe", &NativePool::observe)
      .def("abandon", &NativePool::abandon, nb::arg("timeout_s"))
      .def("rebuild", &NativePool::rebuild, nb::arg("env_id"), nb::arg("phase"))
      .def("set_reset_options", &NativePool::set_reset_options, nb::arg("options"))
      .def("get_state", &NativePool::get_state, nb::arg("env_id"))
      .def("set_state", &NativePool::set_state, nb::arg("env_id"), nb::arg("state"))
      .def("render", &NativePool::render, nb::arg("env_id"))
      .def("get_fields", &NativePool::get_fields, nb::arg("env_id"))
      .def("set_field", &NativePool::set_field, nb::arg("env_id"), nb::arg("name"), nb::arg("value"))
      .def("phases", &NativePool::phases)
      .def("in_flight", &NativePool::in_flight)
      .def("env_statistics", &NativePool::env_statistics)
      .def_prop_ro("num_in_flight", &NativePool::num_in_flight)
      .def_prop_ro("has_late_batch", &NativePool::has_late_batch)
      .def_prop_ro("has_render", &NativePool::has_render)
      .def_prop_ro("ns_per_step", &NativePool::ns_per_step)
      .def_prop_ro("num_buffers", &NativePool::num_buffers)
      .def_prop_ro("call_guard", &NativePool::call_guard, nb::rv_policy::reference_internal)
      .def("end", &NativePool::end);
}

}  // namespace envfleet::bindings
