// In one file, so that a step is inlined as a whole.
#include "bindings/native_pool.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <deque>
#include <numeric>

#include "bindings/bindings.h"
#include "bindings/env_types.h"
#include "bindings/fields_access.h"
#include "bindings/python_calls.h"
#include "engine/env_types.h"

namespace nb = nanobind;

namespace envfleet::bindings {

using engine::BatchBuffer;
using engine::Engine;
using engine::Request;

namespace {

constexpr double kHoldGilNs = 10'000;      // shorter work of envs that never block keeps the GIL
constexpr double kPatientNs = 20'000'000;  // longer work is left to the thread pool, so that Ctrl-C is handled
constexpr const char* kCapsuleName = "envfleet.core.batch";

void release_buffer(PyObject* capsule) {
  engine::BufferPool::release(static_cast<engine::BatchBuffer*>(PyCapsule_GetPointer(capsule, kCapsuleName)));
}

}  // namespace

BatchBuffer* batch_buffer_of(PyObject* base) {
  if (base == nullptr || !PyCapsule_IsValid(base, kCapsuleName)) return nullptr;
  return static_cast<BatchBuffer*>(PyCapsule_GetPointer(base, kCapsuleName));
}

// ---------------------------------------------------------------------------- batches

BatchArrays::BatchArrays(const engine::BatchLayout& layout, nb::object all_ids, nb::object batch_type, bool has_single_obs)
    : layout_(layout), all_ids_(std::move(all_ids)), batch_class_(std::move(batch_type)), has_single_obs_(has_single_obs) {
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

nb::object BatchArrays::wrap(BatchBuffer* buffer, nb::tuple faults) const {
  const nb::object shared = own(buffer);
  PyObject* owner = shared.ptr();
  nb::object batch = batch_class_.make();
  const auto set = [&](BatchClass::Slot slot, PyObject* value) { batch_class_.set(batch, slot, value); };
  set(BatchClass::kObs,
      has_single_obs_ ? array(*buffer, layout_.obs(0), owner) : arrays(*buffer, layout_.obs(0), layout_.num_obs, owner));
  set(BatchClass::kReward, array(*buffer, layout_.reward(), owner));
  set(BatchClass::kTerminated, array(*buffer, layout_.terminated(), owner));
  set(BatchClass::kTruncated, array(*buffer, layout_.truncated(), owner));
  set(BatchClass::kEnvId, env_ids(*buffer, owner));
  set(BatchClass::kElapsedStep, array(*buffer, layout_.elapsed_step(), owner));
  set(BatchClass::kInfo, layout_.num_info == 0 ? PyDict_New() : arrays(*buffer, layout_.info(0), layout_.num_info, owner));
  set(BatchClass::kFinal, layout_.with_finals ? finals(*buffer, owner) : Py_NewRef(Py_None));
  set(BatchClass::kFaults, faults.release().ptr());
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

PyObject* BatchArrays::finals(const BatchBuffer& buffer, PyObject* owner) const {
  const nb::object obs = checked(arrays(buffer, layout_.final_obs(0), layout_.num_obs, owner));
  const nb::object elapsed_step = checked(array(buffer, layout_.final_elapsed_step(), owner));
  const nb::object info = checked(arrays(buffer, layout_.final_info(0), layout_.num_info, owner));
  return PyTuple_Pack(3, obs.ptr(), elapsed_step.ptr(), info.ptr());
}

// ------------------------------------------------------------------------------- life

NativePool::NativePool(const std::string& env_id, const engine::EngineOptions& options, nb::list configs,
                       PythonOptions python)
    : fault_type_(std::move(python.fault_type)) {
  const ef_env_type& type = env_type_of(env_id);
  may_block_ = engine::may_block(type);
  std::deque<ConfigValues> values;  // a deque: its elements are never moved
  for (nb::handle config : configs) values.emplace_back(type, nb::cast<nb::dict>(config));
  std::vector<const ef_value*> raw;
  for (const ConfigValues& value : values) raw.push_back(value.data());
  engine_ = without_gil_if(true, [&] { return Engine::make(type, options, raw); });
  arrays_.emplace(engine_->sync_layout(), std::move(python.all_ids), std::move(python.batch_type), python.has_single_obs);
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

// --------------------------------------------------------------------- how a call waits

// A call of a thread with the GIL: releases it while envs run, and handles signals while it waits.
class NativePool::WithGil {
 public:
  // has_sent: an exception of a signal handler comes after this call has sent something, which is then awaited and
  // discarded.
  WithGil(NativePool& pool, double timeout_s, bool has_sent = true)
      : pool_(pool), timeout_ns_(to_ns(timeout_s)), has_sent_(has_sent) {}
  bool has_limit() const { return timeout_ns_ >= 0; }

  template <class Body>
  auto run(bool release, Body&& body) const {
    return without_gil_if(release, body);
  }
  // attempt(timeout_ns) returns a batch, or null after the timeout. Returns null after the time limit of the call.
  template <class Attempt>
  BatchBuffer* wait(Attempt&& attempt) const {
    if (BatchBuffer* batch = attempt(std::int64_t{0})) return batch;
    if (!has_sent_) return wait_in_slices(pool_.guard_, timeout_ns_, attempt);
    return wait_or_discard(pool_.guard_, timeout_ns_, attempt, [this](BatchBuffer* lost) { pool_.discard(lost); });
  }

 private:
  NativePool& pool_;
  const std::int64_t timeout_ns_;
  const bool has_sent_;
};

// A call of a thread without the GIL, until close() cancels it.
class NativePool::WithoutGil {
 public:
  explicit WithoutGil(const engine::CallGuard& guard) : guard_(guard) {}
  bool has_limit() const { return false; }

  template <class Body>
  auto run(bool, Body&& body) const {
    return body();
  }
  template <class Attempt>
  BatchBuffer* wait(Attempt&& attempt) const {
    BatchBuffer* batch = nullptr;
    while (batch == nullptr && !guard_.is_cancelled()) batch = attempt(kSliceNs);
    return batch;
  }

 private:
  const engine::CallGuard& guard_;
};

bool NativePool::is_expected_below(double limit_ns, Request request, std::int64_t rows) {
  const double expected = engine_->expected_ns(request, rows);
  return expected > 0 && expected < limit_ns;
}

// An env of unknown code may wait for something at any time, however short its steps were so far. Other Python threads go
// on meanwhile: it may be one of them that it waits for.
bool NativePool::releases_gil(Request request, std::int64_t rows) {
  return may_block_ || !is_expected_below(kHoldGilNs, request, rows);
}

// Whether a batch runs from start to end in one call of the engine. A batch that may take long, or whose cost is not known
// yet, is left to the thread pool: Ctrl-C is not handled while the caller's thread is inside an env.
template <class Wait>
bool NativePool::runs_at_once(Request request, std::int64_t rows, const Wait& wait) {
  return !wait.has_limit() && is_expected_below(kPatientNs, request, rows);
}

// --------------------------------------------------------------------------- stepping

template <class Wait>
NativePool::Received NativePool::step_with(const engine::GivenActions& actions, const Wait& wait) {
  if (!engine_->accepts(actions)) return {};
  const Ids ids{actions.env_ids, actions.count};
  if (is_async()) {
    const bool fills = engine_->num_in_flight() + ids.count >= engine_->options().batch_size;
    if (!fills || !engine_->store(actions)) return {};
    begin(Request::step, ids, wait);
    return receive(wait);
  }
  if (engine_->has_ordered_batch()) return {};
  if (runs_at_once(Request::step, ids.count, wait)) {
    // Done before this call ends, so its envs are never seen in flight.
    BatchBuffer* batch = wait.run(releases_gil(Request::step, ids.count), [&] { return engine_->step(actions); });
    return batch != nullptr ? Received(batch) : Received();
  }
  if (!engine_->store(actions)) return {};
  begin(Request::step, ids, wait);
  return finish(wait);
}

template <class Wait>
bool NativePool::send_with(const engine::GivenActions& actions, const Wait& wait) {
  if ((engine_->has_ordered_batch() && !is_async()) || !engine_->accepts(actions) || !engine_->store(actions)) return false;
  begin(Request::step, {actions.env_ids, actions.count}, wait);
  return true;
}

template <class Wait>
NativePool::Received NativePool::receive(const Wait& wait) {
  // An ordered batch that ran into its time limit comes first, also in an asynchronous pool.
  if (engine_->has_ordered_batch()) return finish(wait);
  if (!is_async() || engine_->num_in_flight() < engine_->options().batch_size) return {};
  return wait.wait([this](std::int64_t timeout_ns) { return engine_->take(timeout_ns); });
}

template <class Wait>
void NativePool::begin(Request request, const Ids& ids, const Wait& wait) {
  wait.run(releases_gil(request, ids.count), [&] {
    if (!is_async()) return engine_->start(request, ids.data, ids.count, !wait.has_limit());
    if (ids.data == nullptr && all_ids_.empty()) {
      all_ids_.resize(ids.count);
      std::iota(all_ids_.begin(), all_ids_.end(), 0);
    }
    engine_->post(request, ids.data != nullptr ? ids.data : all_ids_.data(), ids.count);
  });
}

// An ordered batch, also in an asynchronous pool.
template <class Wait>
BatchBuffer* NativePool::run(Request request, const Ids& ids, const Wait& wait) {
  const bool release = releases_gil(request, ids.count);
  if (runs_at_once(request, ids.count, wait)) {
    return wait.run(release, [&] { return engine_->run(request, ids.data, ids.count); });
  }
  wait.run(release, [&] { engine_->start(request, ids.data, ids.count, !wait.has_limit()); });
  return finish(wait);
}

template <class Wait>
BatchBuffer* NativePool::finish(const Wait& wait) {
  return wait.wait([this](std::int64_t timeout_ns) { return engine_->finish(timeout_ns, false); });
}

// ------------------------------------------------------------------------- with the GIL

NativePool::Ids NativePool::checked_ids(nb::handle given) {
  Ids ids{nullptr, engine_->options().num_envs};
  if (!given.is_none()) {
    const IdArray array = read_ids(given);
    if (array.data == nullptr) refuse_ids();
    ids = {array.data, array.count};
  }
  if (!engine_->are_idle(ids.data, ids.count)) refuse_ids();
  return ids;
}

// Actions that are not plainly right have no dtype, and are not accepted.
engine::GivenActions NativePool::read_step(nb::handle actions, nb::handle env_ids) const {
  Ids ids{nullptr, engine_->options().num_envs};
  if (!env_ids.is_none()) {
    const IdArray array = read_ids(env_ids);
    if (array.data == nullptr) return {};
    ids = {array.data, array.count};
  }
  const ActionArray array = read_actions(actions, engine_->spec().action, ids.count);
  return {array.data, array.dtype, ids.data, ids.count};
}

nb::object NativePool::result_of(const Received& received) {
  if (!received) return nb::bool_(false);
  return *received == nullptr ? nb::none() : wrap(*received);
}

nb::object NativePool::wrap(BatchBuffer* batch) {
  if (!engine_->has_faults()) [[likely]]
    return arrays_->wrap(batch, nb::tuple());
  nb::tuple faults;
  try {
    faults = make_faults(engine_->faults_of(*batch));
  } catch (...) {
    guard_.set_unreported(true);
    engine::BufferPool::release(batch);
    throw;
  }
  if (faults.size() != 0) guard_.set_unreported(true);
  return arrays_->wrap(batch, std::move(faults));
}

// Drops a batch that was received. Its faults are handled by the next call.
void NativePool::discard(BatchBuffer* batch) {
  if (has_faults(*batch)) guard_.set_unreported(true);
  engine::BufferPool::release(batch);
  guard_.end_parts();
}

nb::tuple NativePool::make_faults(const std::vector<engine::Fault>& faults) const {
  constexpr const char* kMethods[] = {"__init__", "reset", "step", "observe"};  // by ef_method
  nb::list made;
  for (const engine::Fault& fault : faults)
    made.append(fault_type_(fault.env_id, kMethods[fault.method], to_text(fault.what)));
  return nb::tuple(made);
}

nb::object NativePool::step(nb::handle actions, nb::handle env_ids, double timeout_s) {
  const WholeCall call(guard_);
  if (call.needs_attention()) return nb::bool_(false);
  return result_of(step_with(read_step(actions, env_ids), WithGil(*this, timeout_s)));
}

nb::object NativePool::step_checked(nb::handle actions, nb::handle env_ids, double timeout_s) {
  const PartialCall call(guard_);
  return result_of(step_with(read_step(actions, env_ids), WithGil(*this, timeout_s)));
}

bool NativePool::send(nb::handle actions, nb::handle env_ids) {
  const WholeCall call(guard_);
  return !call.needs_attention() && send_with(read_step(actions, env_ids), WithGil(*this, -1));
}

bool NativePool::send_checked(nb::handle actions, nb::handle env_ids) {
  const PartialCall call(guard_);
  return send_with(read_step(actions, env_ids), WithGil(*this, -1));
}

nb::object NativePool::recv(double timeout_s) {
  const WholeCall call(guard_);
  if (call.needs_attention()) return nb::bool_(false);
  return result_of(receive(WithGil(*this, timeout_s, false)));
}

nb::object NativePool::reset(nb::handle env_ids, double timeout_s) {
  const PartialCall call(guard_);
  return result_of(run(Request::reset, checked_ids(env_ids), WithGil(*this, timeout_s)));
}

void NativePool::send_reset(nb::handle env_ids) {
  const PartialCall call(guard_);
  begin(Request::reset, checked_ids(env_ids), WithGil(*this, -1));
}

nb::object NativePool::observe() {
  const PartialCall call(guard_);
  return result_of(run(Request::observe, {nullptr, engine_->options().num_envs}, WithGil(*this, -1)));
}

// ---------------------------------------------------------------------- without the GIL

// Python raises for envs that raised, or restarts them: their batch is put back, for recv() with the GIL.
NativePool::Received NativePool::put_back_faults(const Received& received) {
  if (!received || *received == nullptr || !has_faults(**received)) [[likely]]
    return received;
  engine_->put_back(*received);
  return nullptr;
}

NativePool::Received NativePool::step_without_gil(const engine::GivenActions& actions) {
  const CallWithoutGil call(guard_);
  return call.may_go_on() ? put_back_faults(step_with(actions, WithoutGil(guard_))) : Received();
}

bool NativePool::send_without_gil(const engine::GivenActions& actions) {
  const CallWithoutGil call(guard_);
  return call.may_go_on() && send_with(actions, WithoutGil(guard_));
}

NativePool::Received NativePool::recv_without_gil() {
  const CallWithoutGil call(guard_);
  return call.may_go_on() ? put_back_faults(receive(WithoutGil(guard_))) : Received();
}

bool NativePool::has_ordered_batch() {
  const PartialCall call(guard_);
  return engine_->has_ordered_batch();
}

// ------------------------------------------------------------------- between batches

bool NativePool::drop_pending(double timeout_s) {
  const PartialCall call(guard_);
  return wait_in_slices(guard_, to_ns(timeout_s), [this](std::int64_t slice) { return engine_->drop_pending(slice); });
}

nb::tuple NativePool::unreported_faults() {
  const PartialCall call(guard_);
  return make_faults(engine_->received_faults());
}

void NativePool::clear_faults() {
  const PartialCall call(guard_);
  engine_->clear_received_faults();
  guard_.set_unreported(false);
}

void NativePool::seed(nb::handle env_ids, nb::handle words) {
  const PartialCall call(guard_);
  const Ids ids = checked_ids(env_ids);
  const std::uint32_t* data = read_seeds(words, ids.count);
  for (std::int64_t i = 0; i < ids.count; ++i) engine_->seed(ids.data != nullptr ? ids.data[i] : i, data + 4 * i);
}

void NativePool::rebuild(std::int32_t env_id, std::uint8_t phase) {
  const PartialCall call(guard_);
  check_range(env_id);
  without_gil_if(may_block_, [&] { engine_->rebuild(env_id, phase); });
}

void NativePool::set_reset_options(std::vector<std::pair<std::string, double>> options) {
  const PartialCall call(guard_);
  engine_->set_reset_options(std::move(options));
}

nb::bytes NativePool::get_state(std::int32_t env_id) {
  const PartialCall call(guard_);
  check_range(env_id);
  const std::string state = without_gil_if(may_block_, [&] { return engine_->get_state(env_id); });
  return nb::bytes(state.data(), state.size());
}

void NativePool::set_state(std::int32_t env_id, nb::bytes state) {
  const PartialCall call(guard_);
  check_range(env_id);
  const auto size = static_cast<std::int64_t>(state.size());
  without_gil_if(may_block_, [&] { engine_->set_state(env_id, state.c_str(), size); });
}

nb::tuple NativePool::render(std::int32_t env_id) {
  const PartialCall call(guard_);
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
  const PartialCall call(guard_);
  check_range(env_id);
  return read_fields(engine_->fleet(), env_id);
}

bool NativePool::set_field(std::int32_t env_id, const std::string& name, nb::handle value) {
  const PartialCall call(guard_);
  check_range(env_id);
  return write_field(*engine_, env_id, name, value);
}

nb::bytes NativePool::phases() {
  const PartialCall call(guard_);
  // The phase of an env in flight is its thread's: it counts as running until its row arrives.
  return bytes_of_envs(engine_->options().num_envs, [&](std::int32_t env_id) -> std::uint8_t {
    return engine_->in_flight()[env_id] != 0 ? static_cast<std::uint8_t>(EF_RUNNING) : engine_->phases()[env_id];
  });
}

nb::bytes NativePool::in_flight() {
  const PartialCall call(guard_);
  return nb::bytes(engine_->in_flight(), static_cast<std::size_t>(engine_->options().num_envs));
}

nb::list NativePool::env_statistics() {
  refuse_forked(guard_);  // a thread that stayed with the parent may hold a lock
  nb::list all;
  for (const engine::EnvStatistics& own : engine_->statistics()) all.append(to_python(own));
  return all;
}

double NativePool::ns_per_step() {
  const PartialCall call(guard_);
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
          set_error(nb::module_::import_("envfleet.core.errors").attr("EnvfleetError").ptr(), error.what());
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
             NativePool::PythonOptions python;
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
                 .read("all_ids", python.all_ids)
                 .read("batch_type", python.batch_type)
                 .read("fault_type", python.fault_type)
                 .read("has_single_obs", python.has_single_obs)
                 .finish();
             options.autoreset = static_cast<ef_autoreset>(autoreset);
             new (self) NativePool(env_id, options, configs, std::move(python));
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
      .def("drop_pending", &NativePool::drop_pending, nb::arg("timeout_s"))
      .def("unreported_faults", &NativePool::unreported_faults)
      .def("clear_faults", &NativePool::clear_faults)
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
      .def_prop_ro("has_ordered_batch", &NativePool::has_ordered_batch)
      .def_prop_ro("has_render", &NativePool::has_render)
      .def_prop_ro("ns_per_step", &NativePool::ns_per_step)
      .def_prop_ro("num_buffers", &NativePool::num_buffers)
      .def_prop_ro("call_guard", &NativePool::call_guard, nb::rv_policy::reference_internal)
      .def("end", &NativePool::end);
}

}  // namespace envfleet::bindings
