// In one file, so that the way of a plain row is inlined as a whole.
#include "env_loop.h"

#include <algorithm>
#include <cstring>

#include "envfleet/abi.h"
#include "numpy_api.h"
#include "python_calls.h"
#include "wait.h"

namespace nb = nanobind;

namespace envfleet::bindings {

using rows::Slot;

namespace {

// A bound method is called as the function it is: one shuffle of arguments less.
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

// What the runner answers: None, or a KeyboardInterrupt to be raised when the row is through.
PyObject* check_interrupt(PyObject* answer) {
  if (answer == nullptr) throw nb::python_error();
  if (answer != Py_None) return answer;
  Py_DECREF(answer);
  return nullptr;
}

}  // namespace

EnvLoop::EnvLoop(nb::object buffer, std::int32_t num_envs, std::int32_t num_workers, std::int32_t worker,
                 std::int32_t autoreset, std::int32_t max_episode_steps, std::int32_t max_spinners, nb::object obs,
                 nb::object action, nb::object info, nb::object runner)
    : buffer_(buffer),
      desk_(reinterpret_cast<std::byte*>(PyArray_BYTES(reinterpret_cast<PyArrayObject*>(buffer.ptr()))),
            rows::Geometry(num_envs, num_workers), worker, max_spinners),
      first_env_(desk_.first_env()),
      end_env_(desk_.end_env()),
      autoreset_(autoreset),
      limit_(max_episode_steps),
      obs_(obs),
      action_(action),
      info_(info),
      runner_(runner),
      env_(end_env_ - first_env_),
      step_(end_env_ - first_env_),
      reset_(end_env_ - first_env_) {}

void EnvLoop::set_env(std::int32_t env_id, nb::object env, nb::object step, nb::object reset) {
  env_.at(env_id - first_env_) = env;
  step_.at(env_id - first_env_) = step;
  reset_.at(env_id - first_env_) = reset;
}

void EnvLoop::detach() {
  for (nb::object& own : env_) own.reset();
  for (nb::object& own : step_) own.reset();
  for (nb::object& own : reset_) own.reset();
  runner_ = nb::none();
}

int EnvLoop::traverse(visitproc visit, void* context) const {
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

void EnvLoop::serve() {
  while (!desk_.is_stopped()) {
    if (!desk_.has_request()) {
      wait();
      continue;
    }
    run_next();
  }
}

void EnvLoop::run_pending(std::int64_t deadline_ns) {
  is_inline_ = true;
  clock_ns_ = 0;
  // Stopped: an env or a signal handler has closed the pool.
  while (desk_.has_request() && !desk_.is_stopped()) {
    if (deadline_ns >= 0 && engine::now_ns() >= deadline_ns) return;
    run_next();
  }
}

nb::object EnvLoop::take_seed(std::int32_t env_id) {
  Slot& slot = desk_.slot(env_id);
  if (slot.has_seed == 0) return nb::none();
  slot.has_seed = 0;
  std::uint8_t bytes[16];
  std::memcpy(bytes, slot.seed, sizeof(bytes));
  return nb::module_::import_("builtins").attr("int").attr("from_bytes")(nb::bytes(bytes, sizeof(bytes)), "little");
}

nb::object EnvLoop::pack_info(std::int32_t env_id, nb::dict info, bool is_final) {
  PyObject* extras = pack(desk_.slot(env_id), env_id, info.ptr(), is_final);
  return extras == nullptr ? nb::none() : nb::steal(extras);
}

void EnvLoop::wait() {
  const std::int64_t start = engine::now_ns();
  rows::WorkerWords& words = desk_.words();
  words.progress_ns.store(start, std::memory_order_relaxed);
  words.current_env.store(-1, std::memory_order_relaxed);
  {
    GilRelease released;
    desk_.sleep(start);
  }
  clock_ns_ = engine::now_ns();
  words.wait_ns += clock_ns_ - start;
}

void EnvLoop::run_next() {
  load_schema();  // before the request is taken: Ctrl-C in here must not lose it
  const std::int32_t env_id = desk_.take_request();
  if (env_id < first_env_ || env_id >= end_env_) throw nb::value_error("the board asks for an env of another worker");
  Slot& slot = desk_.slot(env_id);
  rows::WorkerWords& words = desk_.words();
  // One look at the clock an env: its end is the next one's beginning.
  const std::int64_t start = clock_ns_ != 0 ? clock_ns_ : engine::now_ns();
  words.current_env.store(env_id, std::memory_order_relaxed);
  words.progress_ns.store(start, std::memory_order_relaxed);
  slot.kind = rows::kGoodRow;
  slot.reply_bytes = 0;
  PyObject* interrupt = nullptr;
  try {
    if (slot.op == rows::kCall) {
      interrupt = check_interrupt(python([&] { return PyObject_CallMethod(runner_.ptr(), "call", "i", env_id); }));
    } else {
      slot.has_final = 0;
      slot.info_mask = slot.final_mask = 0;
      interrupt = run(env_id, slot);
    }
  } catch (nb::python_error& error) {
    // Nothing that an env's objects do may leave its row open: Ctrl-C comes anywhere, a key's hash may raise.
    interrupt = give_up_row(env_id, slot, error);
  }
  const std::int64_t now = clock_ns_ = engine::now_ns();
  words.busy_ns += now - start;
  slot.statistics.busy_ns += now - start;
  slot.statistics.slowest_ns = std::max(slot.statistics.slowest_ns.get(), now - start);
  words.progress_ns.store(now, std::memory_order_relaxed);
  is_inline_ ? desk_.finish_inline(env_id) : desk_.finish(env_id);
  if (interrupt != nullptr && !is_inline_) Py_CLEAR(interrupt);  // Ctrl-C is the main thread's: here it is a fault
  if (interrupt != nullptr) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(interrupt)), interrupt);
    Py_DECREF(interrupt);
    throw nb::python_error();
  }
}

// The one that the caller has published by now.
void EnvLoop::load_schema() {
  const std::uint32_t version = desk_.header().schema_version.load(std::memory_order_acquire);
  if (version != schema_version_) [[unlikely]] {
    const nb::object schema = python([&] { return nb::object(runner_.attr("schema")(version)); });
    if (!schema_.load(schema.ptr())) throw nb::python_error();
    schema_version_ = version;
  }
}

// Here and below: gives a KeyboardInterrupt that came while the env ran (a new reference), else null.
PyObject* EnvLoop::run(std::int32_t env_id, Slot& slot) {
  const nb::object& step = step_[env_id - first_env_];
  if (!step.is_valid() || step.is_none()) {
    const int is_reset = slot.op == rows::kReset ? 1 : 0;
    check(python([&] { return PyObject_CallMethod(runner_.ptr(), "lost", "ii", env_id, is_reset); }));
    return nullptr;
  }
  const bool is_reset = slot.op == rows::kReset || (autoreset_ == EF_NEXT_STEP && slot.phase == EF_ENDED);
  return is_reset ? run_reset(env_id, slot) : run_step(env_id, slot, step);
}

PyObject* EnvLoop::run_step(std::int32_t env_id, Slot& slot, const nb::object& step) {
  const bool then_reset = autoreset_ == EF_SAME_STEP;
  // A message instead of a row of the column: an action that is a Python object.
  nb::object action = action_ && slot.request_bytes == 0
                          ? action_.make(env_id)
                          : nb::steal(python([&] { return PyObject_CallMethod(runner_.ptr(), "action", "i", env_id); }));
  PyObject* result = action.is_valid() ? python([&] { return call_step(step.ptr(), action.ptr()); }) : nullptr;
  if (result == nullptr) return fault(env_id, "step");
  nb::object held = nb::steal(result);
  if (finish_plain_step(env_id, slot, result, then_reset)) return nullptr;
  PyObject* flag = then_reset ? Py_True : Py_False;
  return check_interrupt(
      python([&] { return PyObject_CallMethod(runner_.ptr(), "finish_step", "iOO", env_id, result, flag); }));
}

PyObject* EnvLoop::run_reset(std::int32_t env_id, Slot& slot) {
  // In the place of a step, what lies in the mailbox is an action.
  const bool has_options = slot.op == rows::kReset && slot.request_bytes != 0;
  if (slot.has_seed != 0 || has_options) {
    return check_interrupt(
        python([&] { return PyObject_CallMethod(runner_.ptr(), "reset", "ii", env_id, has_options ? 1 : 0); }));
  }
  PyObject* result = python([&] { return PyObject_CallNoArgs(reset_[env_id - first_env_].ptr()); });
  if (result == nullptr) return fault(env_id, "reset");
  nb::object held = nb::steal(result);
  if (PyTuple_CheckExact(result) && PyTuple_GET_SIZE(result) == 2 && obs_ &&
      obs_.write(env_id, PyTuple_GET_ITEM(result, 0)) && write_info(env_id, slot, PyTuple_GET_ITEM(result, 1))) {
    rows::count_reset(slot, false);
    refresh(env_id);
    return nullptr;
  }
  return check_interrupt(python([&] { return PyObject_CallMethod(runner_.ptr(), "finish_reset", "iO", env_id, result); }));
}

// An env may bind another step in its reset.
void EnvLoop::refresh(std::int32_t env_id) {
  nb::object& env = env_[env_id - first_env_];
  if (!env.is_valid() || env.is_none()) return;
  PyObject* step = PyObject_GetAttrString(env.ptr(), "step");
  if (step == nullptr) throw nb::python_error();
  step_[env_id - first_env_] = nb::steal(step);
}

// False: something about it is not plain; the runner looks at the whole of it again.
bool EnvLoop::finish_plain_step(std::int32_t env_id, Slot& slot, PyObject* result, bool then_reset) {
  if (!obs_ || !PyTuple_CheckExact(result) || PyTuple_GET_SIZE(result) != 5) return false;
  PyObject* reward = PyTuple_GET_ITEM(result, 1);
  if (!PyFloat_Check(reward)) return false;  // numpy's float64 is one
  bool terminated, truncated;
  if (!read_flag(PyTuple_GET_ITEM(result, 2), &terminated)) return false;
  if (!read_flag(PyTuple_GET_ITEM(result, 3), &truncated)) return false;
  const bool by_limit = limit_ > 0 && slot.elapsed_step + 1 >= limit_;
  if (then_reset && (terminated || truncated || by_limit)) return false;
  if (!obs_.write(env_id, PyTuple_GET_ITEM(result, 0))) return false;
  if (!write_info(env_id, slot, PyTuple_GET_ITEM(result, 4))) return false;
  rows::count_step(slot, limit_, PyFloat_AS_DOUBLE(reward), terminated, truncated);
  return true;
}

bool EnvLoop::write_info(std::int32_t env_id, Slot& slot, PyObject* info) {
  if (!PyDict_CheckExact(info)) return false;
  if (PyDict_GET_SIZE(info) == 0) return true;
  PyObject* extras = pack(slot, env_id, info, false);
  if (extras == nullptr) return true;
  PyObject* answer = python([&] { return PyObject_CallMethod(runner_.ptr(), "send_extras", "iN", env_id, extras); });
  if (answer == nullptr) {
    // It cannot travel: the runner says so.
    PyErr_Clear();
    return false;
  }
  Py_DECREF(answer);
  return true;
}

// Gives what the schema does not know (a new reference), or null.
PyObject* EnvLoop::pack(Slot& slot, std::int32_t env_id, PyObject* info, bool is_final) const {
  const std::int64_t half = info_.row_bytes / 2;
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

PyObject* EnvLoop::fault(std::int32_t env_id, const char* method) {
  nb::object error = take_exception();
  check(python([&] { return PyObject_CallMethod(runner_.ptr(), "fault", "isO", env_id, method, error.ptr()); }));
  if (!PyErr_GivenExceptionMatches(error.ptr(), PyExc_KeyboardInterrupt)) return nullptr;
  return error.release().ptr();
}

// The row of an env that raised outside of what is foreseen.
PyObject* EnvLoop::give_up_row(std::int32_t env_id, Slot& slot, nb::python_error& error) {
  nb::object value = nb::borrow(error.value());
  const char* method = slot.op == rows::kReset ? "reset" : "step";
  if (slot.op == rows::kCall) method = "call";
  PyObject* answer = python([&] { return PyObject_CallMethod(runner_.ptr(), "fault", "isO", env_id, method, value.ptr()); });
  if (answer == nullptr) {
    PyErr_Clear();
    if (slot.op != rows::kCall) rows::count_fault(slot, slot.op == rows::kReset);
    slot.reply_bytes = 0;
  }
  Py_XDECREF(answer);
  if (!PyErr_GivenExceptionMatches(value.ptr(), PyExc_KeyboardInterrupt)) return nullptr;
  return value.release().ptr();
}

}  // namespace envfleet::bindings
