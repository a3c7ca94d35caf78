// In one file, so that a plain step is inlined as a whole.
#include "bindings/step_loop.h"

#include <numpy/arrayscalars.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>

#include "bindings/bindings.h"
#include "bindings/python_calls.h"
#include "engine/finite.h"
#include "engine/wait.h"
#include "envfleet/abi.h"
#include "envfleet/step_rule.h"

namespace nb = nanobind;

namespace envfleet::bindings {

using shm::Slot;

namespace {

constexpr std::int64_t kMaxCachedScalars = 1024;

// How many fork() calls lie between the process that loaded this module and this one.
std::atomic<std::uint32_t> num_forks{0};

std::uint32_t count_forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { num_forks.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return num_forks.load(std::memory_order_relaxed);
}

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

// The runner returns None, or a KeyboardInterrupt to raise once the row is finished.
PyObject* check_interrupt(PyObject* answer) {
  if (answer == nullptr) throw nb::python_error();
  if (answer != Py_None) return answer;
  Py_DECREF(answer);
  return nullptr;
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
      env_(end_env_ - first_env_),
      step_(end_env_ - first_env_),
      reset_(end_env_ - first_env_),
      num_forks_(count_forks()) {}

void StepLoop::set_env(std::int32_t env_id, nb::object env, nb::object step, nb::object reset) {
  env_.at(env_id - first_env_) = env;
  step_.at(env_id - first_env_) = step;
  reset_.at(env_id - first_env_) = reset;
}

void StepLoop::detach() {
  for (nb::object& own : env_) own.reset();
  for (nb::object& own : step_) own.reset();
  for (nb::object& own : reset_) own.reset();
  runner_ = nb::none();
}

int StepLoop::traverse(visitproc visit, void* context) const {
  const auto visit_all = [&](const std::vector<nb::object>& objects) {
    for (const nb::object& own : objects) {
      if (!own.is_valid()) continue;
      if (const int stop = visit(own.ptr(), context)) return stop;
    }
    return 0;
  };
  for (const auto* objects : {&env_, &step_, &reset_}) {
    if (const int stop = visit_all(*objects)) return stop;
  }
  return runner_.is_valid() ? visit(runner_.ptr(), context) : 0;
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

void StepLoop::check_process() const {
  // In the caller's thread, the child is a copy of the user's program.
  if (num_forks.load(std::memory_order_relaxed) == num_forks_ || is_inline_) [[likely]]
    return;
  std::fputs(
      "envfleet: an env called fork(), and the child returned from the env; the child ends here. "
      "End it with os._exit() in the env.\n",
      stderr);
  _exit(1);
}

nb::object StepLoop::take_seed(std::int32_t env_id) {
  Slot& slot = queue_.slot(env_id);
  if (slot.has_seed == 0) return nb::none();
  slot.has_seed = 0;
  std::uint8_t bytes[16];
  std::memcpy(bytes, slot.seed, sizeof(bytes));
  return nb::module_::import_("builtins").attr("int").attr("from_bytes")(nb::bytes(bytes, sizeof(bytes)), "little");
}

nb::object StepLoop::pack_info(std::int32_t env_id, nb::dict info, bool is_final) {
  PyObject* extras = pack(queue_.slot(env_id), env_id, info.ptr(), is_final);
  return extras == nullptr ? nb::none() : nb::steal(extras);
}

std::int32_t StepLoop::begin_prompt() {
  has_prompt_ = true;
  queue_.state().progress_ns.store(engine::now_ns() + shm::kPromptNs, std::memory_order_relaxed);
  return queue_.state().current_env.load(std::memory_order_relaxed);
}

void StepLoop::end_prompt() {
  // After Ctrl-C, the calls that were requested together with this one open no prompts: the caller does not wait for them.
  has_prompt_ = queue_.has_request();
  PyObject* has_more = has_prompt_ ? Py_True : Py_False;
  Py_XDECREF(python([&] { return PyObject_CallMethod(runner_.ptr(), "end_prompt", "O", has_more); }));
  PyErr_Clear();  // of Ctrl-C, which the caller gets as well
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
  load_schema();  // before the request is taken: Ctrl-C in here must not lose the request
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
  PyObject* interrupt = nullptr;
  try {
    if (slot.op == shm::kCall) {
      interrupt = check_interrupt(python([&] { return PyObject_CallMethod(runner_.ptr(), "call", "i", env_id); }));
    } else {
      slot.has_final = 0;
      slot.info_mask = slot.final_mask = 0;
      interrupt = run(env_id, slot);
    }
  } catch (nb::python_error& error) {
    // Nothing that an env's objects do may leave its row unfinished: Ctrl-C can come anywhere, a key's hash may raise.
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
  if (interrupt != nullptr && !is_inline_) Py_CLEAR(interrupt);  // Ctrl-C is for the main thread; in a worker it is a fault
  if (interrupt != nullptr) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(interrupt)), interrupt);
    Py_DECREF(interrupt);
    throw nb::python_error();
  }
}

// Loads the schema that the caller has published most recently.
void StepLoop::load_schema() {
  const std::uint32_t version = queue_.header().schema_version.load(std::memory_order_acquire);
  if (version != schema_version_) [[unlikely]] {
    const nb::object schema = python([&] { return nb::object(runner_.attr("schema")(version)); });
    if (!schema_.load(schema.ptr())) throw nb::python_error();
    schema_version_ = version;
  }
}

// Here and below: returns a KeyboardInterrupt that was raised while the env ran (a new reference), otherwise null.
PyObject* StepLoop::run(std::int32_t env_id, Slot& slot) {
  const nb::object& step = step_[env_id - first_env_];
  if (!step.is_valid() || step.is_none()) {
    const int is_reset = slot.op == shm::kReset ? 1 : 0;
    check(python([&] { return PyObject_CallMethod(runner_.ptr(), "lost", "ii", env_id, is_reset); }));
    return nullptr;
  }
  const bool is_reset = slot.op == shm::kReset || step_rule(autoreset_, slot.phase) == StepRule::reset;
  return is_reset ? run_reset(env_id, slot) : run_step(env_id, slot, step);
}

PyObject* StepLoop::run_step(std::int32_t env_id, Slot& slot, const nb::object& step) {
  const bool then_reset = has_final_rows(autoreset_);
  // A message instead of a row of the column: an action that is a Python object.
  nb::object action = action_ && slot.request_bytes == 0
                          ? action_.make(env_id)
                          : nb::steal(python([&] { return PyObject_CallMethod(runner_.ptr(), "action", "i", env_id); }));
  PyObject* result = action.is_valid() ? python([&] { return call_step(step.ptr(), action.ptr()); }) : nullptr;
  check_process();
  if (result == nullptr) return fault(env_id, "step");
  nb::object held = nb::steal(result);
  if (finish_plain_step(env_id, slot, result, then_reset)) return nullptr;
  PyObject* flag = then_reset ? Py_True : Py_False;
  return check_interrupt(
      python([&] { return PyObject_CallMethod(runner_.ptr(), "finish_step", "iOO", env_id, result, flag); }));
}

PyObject* StepLoop::run_reset(std::int32_t env_id, Slot& slot) {
  // If the reset takes the place of a step, the message in the side channel is an action.
  const bool has_options = slot.op == shm::kReset && slot.request_bytes != 0;
  if (slot.has_seed != 0 || has_options) {
    return check_interrupt(
        python([&] { return PyObject_CallMethod(runner_.ptr(), "reset", "ii", env_id, has_options ? 1 : 0); }));
  }
  PyObject* result = python([&] { return PyObject_CallNoArgs(reset_[env_id - first_env_].ptr()); });
  check_process();
  if (result == nullptr) return fault(env_id, "reset");
  nb::object held = nb::steal(result);
  if (PyTuple_CheckExact(result) && PyTuple_GET_SIZE(result) == 2 && obs_ &&
      obs_.write(env_id, PyTuple_GET_ITEM(result, 0)) && write_info(env_id, slot, PyTuple_GET_ITEM(result, 1))) {
    shm::count_reset(slot, false);
    refresh(env_id);
    return nullptr;
  }
  return check_interrupt(python([&] { return PyObject_CallMethod(runner_.ptr(), "finish_reset", "iO", env_id, result); }));
}

// Reads env.step again: an env may replace it in reset().
void StepLoop::refresh(std::int32_t env_id) {
  nb::object& env = env_[env_id - first_env_];
  if (!env.is_valid() || env.is_none()) return;
  PyObject* step = PyObject_GetAttrString(env.ptr(), "step");
  if (step == nullptr) throw nb::python_error();
  step_[env_id - first_env_] = nb::steal(step);
}

// Returns false if the result is not plain; the runner then handles all of it.
bool StepLoop::finish_plain_step(std::int32_t env_id, Slot& slot, PyObject* result, bool then_reset) {
  if (!obs_ || !PyTuple_CheckExact(result) || PyTuple_GET_SIZE(result) != 5) return false;
  PyObject* reward = PyTuple_GET_ITEM(result, 1);
  if (!PyFloat_Check(reward)) return false;  // numpy's float64 is one
  if (check_finite_ && !engine::is_finite(PyFloat_AS_DOUBLE(reward))) return false;
  bool terminated, truncated;
  if (!read_flag(PyTuple_GET_ITEM(result, 2), &terminated)) return false;
  if (!read_flag(PyTuple_GET_ITEM(result, 3), &truncated)) return false;
  if (then_reset && shm::ends_episode(slot, max_episode_steps_, terminated, truncated)) return false;
  if (!obs_.write(env_id, PyTuple_GET_ITEM(result, 0))) return false;
  if (!write_info(env_id, slot, PyTuple_GET_ITEM(result, 4))) return false;
  shm::count_step(slot, max_episode_steps_, PyFloat_AS_DOUBLE(reward), terminated, truncated);
  return true;
}

bool StepLoop::write_info(std::int32_t env_id, Slot& slot, PyObject* info) {
  if (!PyDict_CheckExact(info)) return false;
  if (PyDict_GET_SIZE(info) == 0) return true;
  PyObject* extras = pack(slot, env_id, info, false);
  if (extras == nullptr) return true;
  PyObject* answer = python([&] { return PyObject_CallMethod(runner_.ptr(), "send_extras", "iN", env_id, extras); });
  if (answer == nullptr) {
    // It cannot be sent: the runner reports that.
    PyErr_Clear();
    return false;
  }
  Py_DECREF(answer);
  return true;
}

// Returns what the schema does not know (a new reference), or null.
PyObject* StepLoop::pack(Slot& slot, std::int32_t env_id, PyObject* info, bool is_final) const {
  const std::int64_t half = info_.row_bytes() / 2;
  char* target = info_.row(env_id) + (is_final ? half : 0);
  std::uint64_t& mask = is_final ? slot.final_mask : slot.info_mask;
  mask = 0;
  PyObject* extras = nullptr;
  if (!schema_.pack(info, target, &mask, &extras)) {
    Py_XDECREF(extras);
    throw nb::python_error();
  }
  return extras;
}

PyObject* StepLoop::fault(std::int32_t env_id, const char* method) {
  nb::object error = take_exception();
  check(python([&] { return PyObject_CallMethod(runner_.ptr(), "fault", "isO", env_id, method, error.ptr()); }));
  if (!PyErr_GivenExceptionMatches(error.ptr(), PyExc_KeyboardInterrupt)) return nullptr;
  return error.release().ptr();
}

// Finishes the row of an env that raised where no exception is expected.
PyObject* StepLoop::fail_row(std::int32_t env_id, Slot& slot, nb::python_error& error) {
  nb::object value = nb::borrow(error.value());
  const char* method = slot.op == shm::kReset ? "reset" : "step";
  if (slot.op == shm::kCall) method = "call";
  PyObject* answer = python([&] { return PyObject_CallMethod(runner_.ptr(), "fault", "isO", env_id, method, value.ptr()); });
  if (answer == nullptr) {
    PyErr_Clear();
    if (slot.op != shm::kCall) shm::count_fault(slot, slot.op == shm::kReset);
    slot.reply_bytes = 0;
  }
  Py_XDECREF(answer);
  if (!PyErr_GivenExceptionMatches(value.ptr(), PyExc_KeyboardInterrupt)) return nullptr;
  return value.release().ptr();
}

// ----------------------------------------------------------------------------- module

namespace {

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<StepLoop>(self)->traverse(visit, arg) : 0;
}

int clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<StepLoop>(self)->detach();
  return 0;
}

PyType_Slot slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {Py_tp_clear, reinterpret_cast<void*>(clear)}, {0, nullptr}};

}  // namespace

void bind_step_loop(nb::module_& module) {
  nb::class_<StepLoop>(module, "StepLoop", nb::type_slots(slots))
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
                 .read("runner", options.runner)
                 .finish();
             new (self) StepLoop(options);
           })
      .def("set_env", &StepLoop::set_env, nb::arg("env_id"), nb::arg("env").none(), nb::arg("step").none(),
           nb::arg("reset").none())
      .def("detach", &StepLoop::detach)
      .def("serve", &StepLoop::serve)
      .def("run_pending", &StepLoop::run_pending, nb::arg("deadline_ns"))
      .def("begin_prompt", &StepLoop::begin_prompt)
      .def("check_process", &StepLoop::check_process)
      .def("count_step", &StepLoop::count_step)
      .def("count_reset", &StepLoop::count_reset)
      .def("count_fault", &StepLoop::count_fault)
      .def("set_phase", &StepLoop::set_phase)
      .def("take_seed", &StepLoop::take_seed)
      .def("request_bytes", &StepLoop::request_bytes)
      .def("set_reply_bytes", &StepLoop::set_reply_bytes)
      .def("schema_bytes", &StepLoop::schema_bytes)
      .def("pack_info", &StepLoop::pack_info);
}

}  // namespace envfleet::bindings
