// In one file, so that a plain step is inlined as a whole.
#include "bindings/step_loop.h"

#include <numpy/arrayscalars.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>

#include "bindings/bindings.h"
#include "bindings/python_calls.h"
#include "engine/call_guard.h"
#include "engine/finite.h"
#include "engine/wait.h"
#include "envfleet/abi.h"
#include "envfleet/step_rule.h"

namespace nb = nanobind;

namespace envfleet::bindings {

using shm::Slot;

namespace {

constexpr std::int64_t kMaxCachedScalars = 1024;

// A bound method is called through its function, which saves a copy of the arguments.
PyObject* call_step(PyObject* step, PyObject* action) {
  if (!PyMethod_Check(step)) return PyObject_CallOneArg(step, action);
  PyObject* arguments[] = {PyMethod_GET_SELF(step), action};
  return PyObject_Vectorcall(PyMethod_GET_FUNCTION(step), arguments, 2, nullptr);
}

bool read_flag(PyObject* flag, bool* value) {
  if (PyBool_Check(flag)) {
    *value = flag == Py_True;
    return true;
  }
  if (!PyArray_IsScalar(flag, Bool)) return false;
  *value = PyObject_IsTrue(flag) == 1;
  return true;
}

}  // namespace

// ---------------------------------------------------------------------------- columns

ObsColumns::ObsColumns(nb::handle given, bool check_finite) {
  if (given.is_none()) return;
  if (nb::isinstance<nb::list>(given)) {
    kind_ = Kind::leaf;
    column_.emplace(given[0], nb::cast<bool>(given[1]), check_finite);
  } else if (nb::isinstance<nb::dict>(given)) {
    kind_ = Kind::dict;
    for (auto [key, part] : nb::borrow<nb::dict>(given)) {
      keys_.push_back(nb::borrow(key));
      parts_.emplace_back(part, check_finite);
    }
  } else {
    kind_ = Kind::tuple;
    for (nb::handle part : nb::cast<nb::tuple>(given)) parts_.emplace_back(part, check_finite);
  }
}

bool ObsColumns::write(std::int32_t env_id, PyObject* obs) const {
  if (kind_ == Kind::leaf) return column_->write(env_id, obs);
  const auto num_parts = static_cast<Py_ssize_t>(parts_.size());
  if (kind_ == Kind::tuple) {
    if (!PyTuple_CheckExact(obs) || PyTuple_GET_SIZE(obs) != num_parts) return false;
    for (Py_ssize_t i = 0; i < num_parts; ++i) {
      if (!parts_[i].write(env_id, PyTuple_GET_ITEM(obs, i))) return false;
    }
    return true;
  }
  if (!PyDict_CheckExact(obs) || PyDict_GET_SIZE(obs) != num_parts) return false;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject* found = nullptr;
    PyDict_GetItemRef(obs, keys_[i].ptr(), &found);
    const nb::object value = nb::steal(found);
#else
    const nb::object value = nb::borrow(PyDict_GetItemWithError(obs, keys_[i].ptr()));
#endif
    if (!value.is_valid()) {
      PyErr_Clear();  // of a key whose comparison raised: the runner meets it again
      return false;
    }
    if (!parts_[i].write(env_id, value.ptr())) return false;
  }
  return true;
}

ObsColumn::ObsColumn(nb::handle array, bool holds_text, bool check_finite) : Column(array), is_text(holds_text) {
  if (!check_finite || is_text || (!PyTypeNum_ISFLOAT(descriptor_->type_num) && !PyTypeNum_ISCOMPLEX(descriptor_->type_num)))
    return;
  num_elements_ = std::accumulate(row_shape_, row_shape_ + row_ndim_, std::int64_t{1}, std::multiplies<>());
  // The runner looks at every value of rare dtypes, and of those in the byte order of other machines.
  switch (PyArray_ISNBO(descriptor_->byteorder) ? descriptor_->type_num : NPY_NOTYPE) {
    case NPY_HALF:
      are_finite_ = engine::are_finite_halves;
      break;
    case NPY_FLOAT:
      are_finite_ = engine::are_finite_floats;
      break;
    case NPY_DOUBLE:
      are_finite_ = engine::are_finite_doubles;
      break;
    default:
      are_finite_ = [](const void*, std::int64_t) { return false; };
  }
}

bool ObsColumn::write_text(std::int32_t env_id, PyObject* value) const {
  if (!PyUnicode_CheckExact(value)) return false;
  const Py_ssize_t length = PyUnicode_GetLength(value), capacity = row_bytes() / 4 - 1;
  if (length < 0 || length > capacity) return false;
  auto* target = reinterpret_cast<Py_UCS4*>(row(env_id));
  target[0] = static_cast<Py_UCS4>(length);
  return length == 0 || PyUnicode_AsUCS4(value, target + 1, capacity, 0) != nullptr;
}

bool ObsColumn::write(std::int32_t env_id, PyObject* obs) const {
  if (is_text) return write_text(env_id, obs);
  char* target = row(env_id);
  if (PyArray_Check(obs)) {
    auto* array = reinterpret_cast<PyArrayObject*>(obs);
    if (PyArray_DESCR(array) != descriptor_ && !PyArray_EquivTypes(PyArray_DESCR(array), descriptor_)) return false;
    if (!PyArray_IS_C_CONTIGUOUS(array) || PyArray_NDIM(array) != row_ndim_) return false;
    if (!std::equal(row_shape_, row_shape_ + row_ndim_, PyArray_DIMS(array))) return false;
    if (are_finite_ != nullptr && !are_finite_(PyArray_DATA(array), num_elements_)) return false;
    // An env may have written directly into its row.
    if (PyArray_DATA(array) != target) std::memcpy(target, PyArray_DATA(array), static_cast<std::size_t>(row_bytes_));
    return true;
  }
  // Discrete: an int, or numpy's int64.
  if (row_ndim_ != 0 || descriptor_->type_num != NPY_INT64) return false;
  if (PyArray_IsScalar(obs, Int64)) {
    PyArray_ScalarAsCtype(obs, target);
    return true;
  }
  if (!PyLong_CheckExact(obs)) return false;
  int overflows = 0;
  const long long value = PyLong_AsLongLongAndOverflow(obs, &overflows);
  std::memcpy(target, &value, sizeof(value));
  return overflows == 0;
}

nb::object ActionColumn::make(std::int32_t env_id) {
  char* source = row(env_id);
  if (row_ndim_ > 0) {
    Py_INCREF(descriptor_);  // taken over by the call
    PyObject* made = PyArray_NewFromDescr(&PyArray_Type, descriptor_, row_ndim_, row_shape_, nullptr, nullptr, 0, nullptr);
    if (made != nullptr) {
      std::memcpy(PyArray_DATA(reinterpret_cast<PyArrayObject*>(made)), source, static_cast<std::size_t>(row_bytes_));
    }
    return nb::steal(made);
  }
  const auto make_scalar = [&] { return nb::steal(PyArray_Scalar(source, descriptor_, nullptr)); };
  if (descriptor_->type_num != NPY_INT64) return make_scalar();
  std::int64_t value;
  std::memcpy(&value, source, sizeof(value));
  if (value < 0 || value >= kMaxCachedScalars) return make_scalar();
  // numpy's scalars are immutable, so one object per value is enough.
  const auto index = static_cast<std::size_t>(value);
  if (index >= cached_scalars_.size()) cached_scalars_.resize(index + 1);
  if (!cached_scalars_[index].is_valid()) cached_scalars_[index] = make_scalar();
  return cached_scalars_[index];
}

// ------------------------------------------------------------------------------- loop

StepLoop::StepLoop(const StepLoopOptions& options)
    : buffer_(options.buffer),
      queue_(reinterpret_cast<std::byte*>(PyArray_BYTES(as_array(options.buffer))),
             shm::SegmentLayout(options.num_envs, options.num_workers), options.worker, options.num_cores),
      first_env_(queue_.first_env()),
      end_env_(queue_.end_env()),
      autoreset_(options.autoreset),
      max_episode_steps_(options.max_episode_steps),
      check_finite_(options.check_finite),
      obs_(options.obs, options.check_finite),
      action_(options.action),
      info_(options.info),
      kept_(KeptColumn::read(options.kept)),
      runner_(options.runner),
      envs_(options.envs),
      step_(end_env_ - first_env_),
      reset_(end_env_ - first_env_),
      fork_generation_(engine::fork_generation()) {
  for (std::int32_t env_id = first_env_; env_id < end_env_; ++env_id) refresh(env_id);
}

void StepLoop::detach() {
  step_.clear();
  reset_.clear();
  envs_ = nb::list();
  runner_ = nb::none();
}

template <class... Arguments>
nb::object StepLoop::ask(const char* method, const Arguments&... arguments) const {
  return python([&] { return nb::object(runner_.attr(method)(arguments...)); });
}

void StepLoop::serve() {
  while (!queue_.is_stopped()) {
    if (!queue_.has_request()) {
      wait();
      continue;
    }
    run_next();
  }
}

void StepLoop::run_pending(std::int64_t deadline_ns) {
  is_inline_ = true;
  clock_ns_ = 0;
  // Stopped: an env or a signal handler has closed the pool.
  while (queue_.has_request() && !queue_.is_stopped()) {
    if (deadline_ns >= 0 && engine::now_ns() >= deadline_ns) return;
    run_next();
  }
}

void exit_if_forked(std::int64_t generation) {
  if (engine::fork_generation() == generation) [[likely]]
    return;
  std::fputs(
      "envfleet: an env called fork(), and the child returned from the env; the child ends here. "
      "End it with os._exit() in the env.\n",
      stderr);
  _exit(1);
}

// Takes over what an env's method has returned; throws what it has raised.
nb::object StepLoop::returned(PyObject* result) const {
  // In the caller's thread, the child is a copy of the user's program.
  if (!is_inline_) exit_if_forked(fork_generation_);
  return checked(result);
}

std::int32_t StepLoop::begin_prompt() {
  has_prompt_ = true;
  queue_.state().progress_ns.store(engine::now_ns() + shm::kPromptNs, std::memory_order_relaxed);
  return queue_.state().current_env.load(std::memory_order_relaxed);
}

void StepLoop::end_prompt() {
  // After Ctrl-C, the calls that were requested together with this one open no prompts: the caller does not wait for them.
  has_prompt_ = queue_.has_request();
  try {
    ask("end_prompt", has_prompt_);
  } catch (nb::python_error&) {
    // Of Ctrl-C, which the caller gets as well.
  }
}

void StepLoop::wait() {
  const std::int64_t start = engine::now_ns();
  shm::WorkerState& state = queue_.state();
  state.progress_ns.store(start, std::memory_order_relaxed);
  state.current_env.store(-1, std::memory_order_relaxed);
  {
    GilRelease released;
    queue_.sleep();
  }
  clock_ns_ = engine::now_ns();
  state.wait_ns += clock_ns_ - start;
}

void StepLoop::run_next() {
  load_schema();  // before the request is taken: an exception in here must not lose the request
  const std::int32_t env_id = queue_.take_request();
  if (env_id < first_env_ || env_id >= end_env_) throw nb::value_error("got a request for an env of another worker");
  Slot& slot = queue_.slot(env_id);
  shm::WorkerState& state = queue_.state();
  // The clock is read once per env: the end of one is the start of the next.
  const std::int64_t start = clock_ns_ != 0 ? clock_ns_ : engine::now_ns();
  state.current_env.store(env_id, std::memory_order_relaxed);
  state.progress_ns.store(start, std::memory_order_relaxed);
  slot.kind = shm::kGoodRow;
  slot.reply_bytes = 0;
  nb::object interrupt;
  try {
    slot.op == shm::kCall ? run_call(env_id, slot) : run(env_id, slot);
  } catch (nb::python_error& error) {
    interrupt = fail_row(env_id, slot, error);
  }
  if (slot.kind == shm::kGoodRow && slot.op != shm::kCall) {
    for (const KeptColumn& column : kept_) column.keep(slot, env_id);
  }
  if (has_prompt_) [[unlikely]]
    end_prompt();
  const std::int64_t now = clock_ns_ = engine::now_ns();
  state.busy_ns += now - start;
  slot.statistics.busy_ns += now - start;
  slot.statistics.slowest_ns = std::max(slot.statistics.slowest_ns.get(), now - start);
  state.progress_ns.store(now, std::memory_order_relaxed);
  is_inline_ ? queue_.finish_inline(env_id, now) : queue_.finish(env_id, now);
  if (interrupt.is_valid()) {
    PyErr_SetObject(interrupt.type().ptr(), interrupt.ptr());
    throw nb::python_error();
  }
}

// Loads the schema that the caller has published most recently.
void StepLoop::load_schema() {
  const std::uint32_t version = queue_.header().schema_version.load(std::memory_order_acquire);
  if (version != schema_version_) [[unlikely]] {
    const nb::object schema = ask("schema", version, queue_.header().schema_bytes[version]);
    if (!schema_.load(schema.ptr())) throw nb::python_error();
    schema_version_ = version;
  }
}

void StepLoop::run(std::int32_t env_id, Slot& slot) {
  slot.has_final = 0;
  slot.info_mask = slot.final_mask = 0;
  const nb::object& step = step_[env_id - first_env_];
  if (!step.is_valid()) {  // it died with an earlier worker, and has not been built again
    shm::count_fault(slot, slot.op == shm::kReset);
    slot.kind = shm::kLostRow;
    return;
  }
  const bool is_reset = slot.op == shm::kReset || step_rule(autoreset_, slot.phase) == StepRule::reset;
  is_reset ? run_reset(env_id, slot) : run_step(env_id, slot, step);
}

void StepLoop::run_step(std::int32_t env_id, Slot& slot, const nb::object& step) {
  method_ = "step";
  // A message instead of a row of the column: an action that is a Python object.
  const nb::object action =
      action_ && slot.request_bytes == 0 ? action_.make(env_id) : ask("action", env_id, slot.request_bytes);
  if (!action.is_valid()) throw nb::python_error();
  const nb::object result = returned(python([&] { return call_step(step.ptr(), action.ptr()); }));
  if (!finish_plain_step(env_id, slot, result.ptr())) finish_step(env_id, slot, result);
}

void StepLoop::run_reset(std::int32_t env_id, Slot& slot) {
  method_ = "reset";
  // If the reset takes the place of a step, the message in the side channel is an action.
  const std::uint64_t num_bytes = slot.op == shm::kReset ? slot.request_bytes : 0;
  nb::object keywords;
  if (slot.has_seed != 0 || num_bytes != 0) keywords = ask("reset_arguments", env_id, num_bytes, take_seed(slot));
  const nb::object& reset = reset_[env_id - first_env_];
  const nb::object result = returned(python([&] {
    return keywords.is_valid() ? PyObject_VectorcallDict(reset.ptr(), nullptr, 0, keywords.ptr())
                               : PyObject_CallNoArgs(reset.ptr());
  }));
  if (!finish_plain_reset(env_id, slot, result.ptr())) finish_reset(env_id, slot, result, nb::none(), false);
}

void StepLoop::run_call(std::int32_t env_id, Slot& slot) {
  method_ = "call";
  slot.reply_bytes = nb::cast<std::uint64_t>(ask("call", env_id, slot.request_bytes));
  refresh(env_id);
}

// Reads the methods of an env again: it may replace them in reset(), and a call may replace the env.
void StepLoop::refresh(std::int32_t env_id) {
  const std::int32_t index = env_id - first_env_;
  const nb::object env = envs_[index];
  if (env.is_none()) return;
  step_[index] = checked(PyObject_GetAttrString(env.ptr(), "step"));
  reset_[index] = checked(PyObject_GetAttrString(env.ptr(), "reset"));
}

// The seed of the request as an int, once; otherwise None.
nb::object StepLoop::take_seed(Slot& slot) const {
  if (slot.has_seed == 0) return nb::none();
  slot.has_seed = 0;
  std::uint8_t bytes[16];
  std::memcpy(bytes, slot.seed, sizeof(bytes));
  return nb::module_::import_("builtins").attr("int").attr("from_bytes")(nb::bytes(bytes, sizeof(bytes)), "little");
}

// ------------------------------------------------------------------------------- rows

// Returns false if the result is not plain; the runner then reads it.
bool StepLoop::finish_plain_step(std::int32_t env_id, Slot& slot, PyObject* result) {
  if (!obs_ || !PyTuple_CheckExact(result) || PyTuple_GET_SIZE(result) != 5) return false;
  PyObject* reward = PyTuple_GET_ITEM(result, 1);
  if (!PyFloat_Check(reward)) return false;  // numpy's float64 is one
  if (check_finite_ && !engine::is_finite(PyFloat_AS_DOUBLE(reward))) return false;
  bool terminated, truncated;
  if (!read_flag(PyTuple_GET_ITEM(result, 2), &terminated)) return false;
  if (!read_flag(PyTuple_GET_ITEM(result, 3), &truncated)) return false;
  if (has_final_rows(autoreset_) && shm::ends_episode(slot, max_episode_steps_, terminated, truncated)) return false;
  if (!obs_.write(env_id, PyTuple_GET_ITEM(result, 0))) return false;
  if (!write_info(env_id, slot, PyTuple_GET_ITEM(result, 4))) return false;
  shm::count_step(slot, max_episode_steps_, PyFloat_AS_DOUBLE(reward), terminated, truncated);
  return true;
}

bool StepLoop::finish_plain_reset(std::int32_t env_id, Slot& slot, PyObject* result) {
  if (!obs_ || !PyTuple_CheckExact(result) || PyTuple_GET_SIZE(result) != 2) return false;
  if (!obs_.write(env_id, PyTuple_GET_ITEM(result, 0))) return false;
  if (!write_info(env_id, slot, PyTuple_GET_ITEM(result, 1))) return false;
  shm::count_reset(slot, false);
  refresh(env_id);
  return true;
}

bool StepLoop::write_info(std::int32_t env_id, Slot& slot, PyObject* info) {
  if (!PyDict_CheckExact(info)) return false;
  if (PyDict_GET_SIZE(info) == 0) return true;
  const nb::object extras = pack(slot, env_id, info, false);
  if (extras.is_none()) return true;
  try {
    slot.reply_bytes = nb::cast<std::uint64_t>(ask("send_info", env_id, extras));
  } catch (nb::python_error&) {
    return false;  // it cannot be sent: the step counts all the same, and then the runner says why
  }
  return true;
}

// Returns a dict of what the schema does not know, or None.
nb::object StepLoop::pack(Slot& slot, std::int32_t env_id, PyObject* info, bool is_final) const {
  const std::int64_t half = info_.row_bytes() / 2;
  char* target = info_.row(env_id) + (is_final ? half : 0);
  std::uint64_t& mask = is_final ? slot.final_mask : slot.info_mask;
  mask = 0;
  PyObject* extras = nullptr;
  const bool is_packed = schema_.pack(info, target, &mask, &extras);
  const nb::object found = nb::steal(extras);
  if (!is_packed) throw nb::python_error();
  return found.is_valid() ? found : nb::none();
}

// A result that is not plain.
void StepLoop::finish_step(std::int32_t env_id, Slot& slot, const nb::object& result) {
  const nb::object read = ask("read_step", result);
  PyObject *leaves, *info;
  double reward;
  int terminated, truncated;
  if (!PyArg_ParseTuple(read.ptr(), "OdppO!", &leaves, &reward, &terminated, &truncated, &PyDict_Type, &info)) {
    throw nb::python_error();
  }
  const bool ended = shm::count_step(slot, max_episode_steps_, reward, terminated != 0, truncated != 0);
  const bool is_last = ended && has_final_rows(autoreset_);
  const nb::object message = write_row(env_id, slot, leaves, info, is_last, nb::none());
  if (!is_last) return send(env_id, slot, message);
  method_ = "reset";
  const nb::object first = returned(python([&] { return PyObject_CallNoArgs(reset_[env_id - first_env_].ptr()); }));
  finish_reset(env_id, slot, first, message, true);
}

// message: of the final row, if the reset follows a step; else None.
void StepLoop::finish_reset(std::int32_t env_id, Slot& slot, const nb::object& result, nb::object message,
                            bool is_same_step) {
  const nb::object read = ask("read_reset", result);
  PyObject *leaves, *info;
  if (!PyArg_ParseTuple(read.ptr(), "OO!", &leaves, &PyDict_Type, &info)) throw nb::python_error();
  message = write_row(env_id, slot, leaves, info, false, message);
  shm::count_reset(slot, is_same_step);
  send(env_id, slot, message);
  refresh(env_id);
}

// Writes the columns of a row. Returns the message, which has what fits none; None if it is empty.
nb::object StepLoop::write_row(std::int32_t env_id, Slot& slot, PyObject* leaves, PyObject* info, bool is_final,
                               const nb::object& message) {
  const nb::object extras = pack(slot, env_id, info, is_final);
  return ask("write_row", env_id, nb::handle(leaves), extras, is_final, message);
}

void StepLoop::send(std::int32_t env_id, Slot& slot, const nb::object& message) {
  if (!message.is_none()) slot.reply_bytes = nb::cast<std::uint64_t>(ask("send", env_id, message));
}

// Finishes the row, or the call, of an env that raised. Returns Ctrl-C in the caller's own thread, which the caller raises;
// in a worker it is a fault like any other.
nb::object StepLoop::fail_row(std::int32_t env_id, Slot& slot, nb::python_error& raised) {
  if (!is_inline_) exit_if_forked(fork_generation_);
  raised.restore();
  const nb::object error = take_exception();
  if (slot.op != shm::kCall) shm::count_fault(slot, std::strcmp(method_, "reset") == 0);
  slot.reply_bytes = 0;
  try {
    slot.reply_bytes = nb::cast<std::uint64_t>(ask("fault", env_id, method_, error));
  } catch (nb::python_error&) {
    // The report raised too, such as a key's hash, or Ctrl-C again: the caller finds a fault without one.
  }
  if (!is_inline_ || !PyErr_GivenExceptionMatches(error.ptr(), PyExc_KeyboardInterrupt)) return {};
  slot.phase = EF_BROKEN;  // also in a call
  return error;
}

// ----------------------------------------------------------------------------- module

void bind_step_loop(nb::module_& module) {
  module.def("fork_generation", &engine::fork_generation);
  module.def("exit_if_forked", &exit_if_forked, nb::arg("generation"));
  nb::class_<StepLoop>(module, "StepLoop")
      .def("__init__",
           [](StepLoop* self, nb::kwargs given) {
             StepLoopOptions options;
             Keywords("StepLoop()", given)
                 .read("buffer", options.buffer)
                 .read("num_envs", options.num_envs)
                 .read("num_workers", options.num_workers)
                 .read("worker", options.worker)
                 .read("autoreset", options.autoreset)
                 .read("max_episode_steps", options.max_episode_steps)
                 .read("num_cores", options.num_cores)
                 .read("check_finite", options.check_finite)
                 .read("obs", options.obs)
                 .read("action", options.action)
                 .read("info", options.info)
                 .read("kept", options.kept)
                 .read("envs", options.envs)
                 .read("runner", options.runner)
                 .finish();
             new (self) StepLoop(options);
           })
      .def("detach", &StepLoop::detach)
      .def("serve", &StepLoop::serve)
      .def("run_pending", &StepLoop::run_pending, nb::arg("deadline_ns"))
      .def("begin_prompt", &StepLoop::begin_prompt);
}

}  // namespace envfleet::bindings
