// A NativePool's life and its batches. In one file, so that a step is inlined as a whole.
#include "native_pool.h"

#include <deque>

#include "caller.h"
#include "config_values.h"
#include "env_types.h"
#include "given_arrays.h"
#include "python_calls.h"
#include "timeouts.h"

namespace nb = nanobind;

namespace envfleet::bindings {

using engine::BatchBuffer;
using engine::Engine;
using engine::Request;

namespace {

constexpr double kHoldGilNs = 10'000;      // shorter work keeps the GIL
constexpr double kPatientNs = 20'000'000;  // longer work is left to the crew: Ctrl-C must be heard

}  // namespace

NativePool::NativePool(const std::string& id, std::int32_t num_envs, std::int32_t batch_size, std::int32_t num_threads,
                       std::int32_t thread_affinity_offset, std::int32_t max_episode_steps, std::int32_t autoreset,
                       nb::list configs, nb::object whole_ids) {
  const ef_env_type* type = engine::find_env_type(id);
  if (type == nullptr) throw nb::key_error(id.c_str());
  std::deque<ConfigValues> values;  // never relocated
  for (nb::handle config : configs) values.emplace_back(*type, nb::cast<nb::dict>(config));
  std::vector<const ef_value*> raw;
  for (const ConfigValues& value : values) raw.push_back(value.data());
  engine::EngineOptions options;
  options.num_envs = num_envs;
  options.batch_size = batch_size;
  options.num_threads = num_threads;
  options.thread_affinity_offset = thread_affinity_offset;
  options.max_episode_steps = max_episode_steps;
  options.autoreset = static_cast<ef_autoreset>(autoreset);
  engine_ = without_gil_if(true, [&] { return Engine::make(*type, options, raw); });
  ids_.emplace(num_envs);
  actions_.emplace(engine_->spec().action);
  arrays_.emplace(engine_->sync_layout(), whole_ids.ptr());
}

NativePool::~NativePool() {
  if (engine_ == nullptr) return;
  if (guard_.is_forked()) {
    // Its threads are not here to be joined; the parent's copy is the one that counts.
    new std::shared_ptr<Engine>(std::move(engine_));
    return;
  }
  end();
}

bool NativePool::end() {
  if (engine_->is_closed()) return true;
  return without_gil_if(true, [&] { return engine_->close(kCloseTimeoutNs); });
}

NativePool::Ids NativePool::plain_ids(nb::handle given) {
  const std::int32_t num_envs = engine_->options().num_envs;
  if (given.is_none()) return {engine_->num_in_flight == 0, nullptr, num_envs};
  const GivenIds ids = read_ids(given);
  if (ids.data == nullptr || !ids_->accepts(*engine_, ids.data, ids.count)) return {};
  return {true, ids.data, ids.count};
}

bool NativePool::accept(const Ids& ids, const GivenActions& actions) {
  return actions.dtype >= 0 && actions_->takes(actions.dtype) && may_step(*engine_, ids.data, ids.count);
}

bool NativePool::store(const Ids& ids, const GivenActions& actions) {
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

void NativePool::mark(const std::int32_t* env_ids, std::int64_t count, std::uint8_t flag) {
  std::uint8_t* in_flight = engine_->in_flight();
  for (std::int64_t i = 0; i < count; ++i) in_flight[env_ids != nullptr ? env_ids[i] : i] = flag;
  engine_->num_in_flight += flag != 0 ? count : -count;
}

// A batch in the order of its ids. Marked when it is under way: what throws leaves nothing in flight.
void NativePool::start(Request request, const Ids& ids, bool may_run_here) {
  const bool release = !is_expected_below(kHoldGilNs, request, ids.count);
  without_gil_if(release, [&] { engine_->start(request, ids.data, ids.count, may_run_here); });
  mark(ids.data, ids.count, 1);
}

void NativePool::begin(Request request, const Ids& ids) {
  if (!is_async()) return start(request, ids);
  const std::int32_t* data = ids.data;
  if (data == nullptr) {
    whole_.resize(ids.count);
    for (std::int64_t i = 0; i < ids.count; ++i) whole_[i] = static_cast<std::int32_t>(i);
    data = whole_.data();
  }
  const bool release = !is_expected_below(kHoldGilNs, request, ids.count);
  without_gil_if(release, [&] { engine_->post(request, data, ids.count); });
  mark(ids.data, ids.count, 1);
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

// The batch's arrays, then None or the list of its faults: (env_id, method, what).
nb::object NativePool::wrap(BatchBuffer* batch) {
  PyObject* faults = Py_None;
  Py_INCREF(faults);
  if (engine_->has_faults()) [[unlikely]] {
    Py_DECREF(faults);
    faults = faults_of(*batch);
    if (faults == nullptr) {
      engine::BufferPool::release(batch);
      throw nb::python_error();
    }
  }
  PyObject* tuple = arrays_->wrap(batch, faults);
  if (tuple == nullptr) throw nb::python_error();
  return nb::steal(tuple);
}

// Null with a Python error set when memory ran out.
PyObject* NativePool::faults_of(const BatchBuffer& batch) {
  PyObject* list = PyList_New(0);
  const std::int32_t* env_ids = batch.is_whole ? nullptr : batch.env_ids();
  for (const engine::Fault& fault : engine_->take_faults(env_ids, batch.num_rows)) {
    PyObject* what = decode(fault.what);
    PyObject* entry = what == nullptr ? nullptr : Py_BuildValue("(iiN)", fault.env_id, fault.method, what);
    if (list == nullptr || entry == nullptr || PyList_Append(list, entry) < 0) {
      Py_XDECREF(entry);
      Py_XDECREF(list);
      return nullptr;
    }
    Py_DECREF(entry);
  }
  return list;
}

// Whether a batch runs from start to end in one call of the engine. One that may take long, or of which nothing is
// known yet, is left to the thread pool: a caller who is inside an env hears no Ctrl-C.
bool NativePool::runs_at_once(Request request, const Ids& ids, double timeout_s) {
  return timeout_s < 0 && is_expected_below(kPatientNs, request, ids.count);
}

nb::object NativePool::run_at_once(Request request, const Ids& ids, const engine::DeferredActions* actions) {
  // Done before this call ends, so nobody sees these envs in flight.
  const bool release = !is_expected_below(kHoldGilNs, request, ids.count);
  return wrap(without_gil_if(release, [&] { return engine_->run(request, ids.data, ids.count, actions); }));
}

nb::object NativePool::run(Request request, const Ids& ids, double timeout_s) {
  if (runs_at_once(request, ids, timeout_s)) return run_at_once(request, ids, nullptr);
  start(request, ids, timeout_s < 0);
  return finish(to_ns(timeout_s));
}

nb::object NativePool::step_inside(nb::handle given, nb::handle env_ids, double timeout_s) {
  const Ids ids = plain_ids(env_ids);
  if (!ids.are_plain || engine_->has_started()) return nb::bool_(false);
  const GivenActions actions = read_actions(given, engine_->spec().action, ids.count);
  if (!accept(ids, actions)) return nb::bool_(false);
  if (!runs_at_once(Request::step, ids, timeout_s)) {
    if (!store(ids, actions)) return nb::bool_(false);
    return run(Request::step, ids, timeout_s);
  }
  if (!actions_->accepts(actions.data, actions.dtype, ids.count)) return nb::bool_(false);
  struct Context {
    const engine::ActionStore& store;
    const engine::ActionSlots slots;
    const GivenActions& actions;
    const Ids& ids;
    const std::int64_t row_bytes;
  } const context{*actions_, engine_->action_slots(), actions, ids, actions_->row_bytes(actions.dtype)};
  const auto store_rows = [](const void* raw, std::int64_t begin, std::int64_t end) {
    const Context& own = *static_cast<const Context*>(raw);
    engine::ActionSlots slots = own.slots;
    const std::int32_t* env_ids = own.ids.data;
    if (env_ids != nullptr) {
      env_ids += begin;
    } else {
      slots.base += begin * slots.slot_bytes;
    }
    const auto* rows = static_cast<const char*>(own.actions.data) + begin * own.row_bytes;
    own.store.store_accepted(slots, rows, own.actions.dtype, env_ids, end - begin);
  };
  const engine::DeferredActions deferred{store_rows, &context};
  return run_at_once(Request::step, ids, &deferred);
}

bool NativePool::send_inside(nb::handle given, nb::handle env_ids) {
  const Ids ids = plain_ids(env_ids);
  if (!ids.are_plain || (engine_->has_started() && !is_async())) return false;
  const GivenActions actions = read_actions(given, engine_->spec().action, ids.count);
  if (!accept(ids, actions) || !store(ids, actions)) return false;
  begin(Request::step, ids);
  return true;
}

nb::object NativePool::step(nb::handle actions, nb::handle env_ids, double timeout_s) {
  const Scope<WholeCall> call(*this);
  return step_inside(actions, env_ids, timeout_s);
}

nb::object NativePool::step_checked(nb::handle actions, nb::handle env_ids, double timeout_s) {
  const Scope<PartialCall> call(*this);
  return step_inside(actions, env_ids, timeout_s);
}

bool NativePool::send(nb::handle actions, nb::handle env_ids) {
  const Scope<WholeCall> call(*this);
  return send_inside(actions, env_ids);
}

bool NativePool::send_checked(nb::handle actions, nb::handle env_ids) {
  const Scope<PartialCall> call(*this);
  return send_inside(actions, env_ids);
}

nb::object NativePool::recv(double timeout_s) {
  const Scope<WholeCall> call(*this);
  const std::int64_t timeout_ns = to_ns(timeout_s);
  // A batch in order that ran into its time limit comes first, also in an asynchronous pool.
  if (engine_->has_started()) return finish(timeout_ns);
  if (!is_async() || engine_->num_in_flight < engine_->options().batch_size) return nb::bool_(false);
  BatchBuffer* batch = engine_->take(0);
  if (batch == nullptr) batch = wait_in_slices(guard_, timeout_ns, [&](std::int64_t slice) { return engine_->take(slice); });
  if (batch == nullptr) return nb::none();
  mark(batch->env_ids(), batch->num_rows, 0);
  return wrap(batch);
}

nb::object NativePool::reset(nb::handle env_ids, double timeout_s) {
  const Scope<PartialCall> call(*this);
  const Ids ids = checked_ids(env_ids);
  return run(Request::reset, ids, timeout_s);
}

void NativePool::send_reset(nb::handle env_ids) {
  const Scope<PartialCall> call(*this);
  begin(Request::reset, checked_ids(env_ids));
}

nb::object NativePool::observe() {
  const Scope<PartialCall> call(*this);
  const std::int64_t num_envs = engine_->options().num_envs;
  if (is_expected_below(kPatientNs, Request::observe, num_envs)) return run(Request::observe, {true, nullptr, num_envs}, -1);
  // Not marked as in flight: an observation that was interrupted is nobody's batch.
  without_gil_if(true, [&] { engine_->start(Request::observe, nullptr, num_envs); });
  is_observe_abandoned_ = true;
  BatchBuffer* batch = wait_in_slices(guard_, -1, [&](std::int64_t slice) { return engine_->finish(slice, false); });
  is_observe_abandoned_ = false;
  return wrap(batch);
}

void NativePool::drop_abandoned_observe() {
  BatchBuffer* batch = wait_in_slices(guard_, -1, [&](std::int64_t slice) { return engine_->finish(slice, false); });
  is_observe_abandoned_ = false;
  engine_->take_faults(nullptr, 0);  // its own: nothing else was in flight
  engine::BufferPool::release(batch);
}

bool NativePool::has_late_batch() {
  const Scope<PartialCall> call(*this);
  return engine_->has_started();
}

}  // namespace envfleet::bindings
