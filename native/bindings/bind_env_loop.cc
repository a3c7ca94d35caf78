// EnvLoop: the worker's side of a board: takes requests, calls Python envs, writes their rows.
//
// The plain case is done here: an env that returns an array of its space's dtype and shape, numbers and
// flags, and infos that the schema knows. Everything else (nested spaces, seeds, faults, odd types) is
// handed to the `runner`, a Python object (executors/rows/runner.py), which can do all of it.
//
// Thread safety: one thread at a time. Holds the GIL but while it waits.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

#include "bindings.h"
#include "board.h"
#include "cores.h"
#include "envfleet/abi.h"
#include "info_schema.h"
#include "loop_columns.h"
#include "numpy_api.h"
#include "wait.h"

namespace nb = nanobind;

namespace envfleet::bindings {

namespace {

using rows::Done;
using rows::Slot;

constexpr std::int64_t kSpinNs = 50'000;

// Calls into Python. A thread that was left behind and comes back while the interpreter ends is taken down by
// unwinding its stack, and destructors would run without the GIL: it stays here instead, until the process is gone.
template <class Call>
PyObject* python(Call&& call) {
#if defined(__GLIBCXX__)
  try {
    return call();
  } catch (abi::__forced_unwind&) {
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
#else
  return call();
#endif
}

// Takes the pending exception, with its traceback attached.
nb::object take_exception() {
#if PY_VERSION_HEX >= 0x030C0000
  return nb::steal(PyErr_GetRaisedException());
#else
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return nb::steal(value);
#endif
}

class EnvLoop {
 public:
  EnvLoop(nb::object buffer, std::int32_t num_envs, std::int32_t num_workers, std::int32_t worker, std::int32_t autoreset,
          std::int32_t max_episode_steps, std::int32_t max_spinners, nb::object obs, nb::object action, nb::object info,
          nb::object runner)
      : buffer_(buffer),
        geometry_(num_envs, num_workers),
        worker_(worker),
        first_env_(geometry_.first_env(worker)),
        end_env_(worker + 1 < num_workers ? geometry_.first_env(worker + 1) : num_envs),
        autoreset_(autoreset),
        limit_(max_episode_steps),
        max_spinners_(max_spinners),
        obs_(obs),
        action_(action),
        info_(info),
        runner_(runner),
        env_(end_env_ - first_env_),
        step_(end_env_ - first_env_),
        reset_(end_env_ - first_env_) {
    base_ = reinterpret_cast<std::byte*>(PyArray_BYTES(reinterpret_cast<PyArrayObject*>(buffer.ptr())));
    words_ = &geometry_.worker(base_, worker);
    tail_ = words_->request_tail.load();
    done_ = words_->done_head.load();
  }

  // The callables of one env; None while it is not built.
  void set_env(std::int32_t env_id, nb::object env, nb::object step, nb::object reset) {
    env_.at(env_id - first_env_) = env;
    step_.at(env_id - first_env_) = step;
    reset_.at(env_id - first_env_) = reset;
  }

  // Lets go of the envs and the runner, which holds this in turn.
  void detach() {
    for (nb::object& own : env_) own.reset();
    for (nb::object& own : step_) own.reset();
    for (nb::object& own : reset_) own.reset();
    runner_ = nb::none();
  }

  // Works until the board says stop.
  void serve() {
    rows::Header& header = geometry_.header(base_);
    while (header.stop.load(std::memory_order_acquire) == 0) {
      if (words_->request_head.load(std::memory_order_acquire) == tail_) {
        wait();
        continue;
      }
      run_next();
    }
  }

  // Works in the caller's thread until nothing is asked for or the clock says deadline_ns (negative: none).
  void run_pending(std::int64_t deadline_ns) {
    is_inline_ = true;
    clock_ns_ = 0;
    while (words_->request_head.load(std::memory_order_acquire) != tail_) {
      if (deadline_ns >= 0 && engine::now_ns() >= deadline_ns) return;
      run_next();
    }
  }

  // Called by the runner: the one place that counts steps and knows the time limit. True: the episode ended.
  bool count_step(std::int32_t env_id, double reward, bool terminated, bool truncated) {
    Slot& slot = geometry_.slot(base_, env_id);
    ++slot.elapsed_step;
    truncated = truncated || (limit_ > 0 && slot.elapsed_step >= limit_);
    slot.reward = reward;
    slot.terminated = terminated ? 1 : 0;
    slot.truncated = truncated ? 1 : 0;
    rows::Statistics& own = slot.statistics;
    ++own.num_steps;
    own.return_now += reward;
    const bool ended = terminated || truncated;
    if (ended) {
      slot.phase = EF_ENDED;
      const auto length = static_cast<std::int64_t>(slot.elapsed_step);
      const bool is_first = own.num_episodes++ == 0;
      own.return_sum += own.return_now;
      own.length_sum += length;
      own.return_min = is_first ? own.return_now : std::min(own.return_min, own.return_now);
      own.return_max = is_first ? own.return_now : std::max(own.return_max, own.return_now);
      own.length_min = is_first ? length : std::min(own.length_min, length);
      own.length_max = is_first ? length : std::max(own.length_max, length);
    }
    return ended;
  }

  // A new episode. In the same step as the last one's end, its count goes beside.
  void count_reset(std::int32_t env_id, bool is_same_step) {
    Slot& slot = geometry_.slot(base_, env_id);
    if (is_same_step) {
      slot.final_elapsed_step = slot.elapsed_step;
      slot.has_final = 1;
    } else {
      slot.reward = 0;
      slot.terminated = slot.truncated = 0;
    }
    slot.elapsed_step = 0;
    slot.phase = EF_RUNNING;
    ++slot.statistics.num_resets;
    slot.statistics.return_now = 0;
  }

  // The env raised: its row says nothing, and it is broken. The observation is the runner's to clear.
  void count_fault(std::int32_t env_id, bool in_reset) {
    Slot& slot = geometry_.slot(base_, env_id);
    slot.kind = rows::kFaultRow;
    slot.phase = EF_BROKEN;
    slot.reward = 0;
    slot.terminated = slot.truncated = slot.has_final = 0;
    slot.info_mask = slot.final_mask = 0;
    if (in_reset) slot.elapsed_step = 0;
    slot.statistics.return_now = 0;
  }

  void set_phase(std::int32_t env_id, std::uint8_t phase) {
    Slot& slot = geometry_.slot(base_, env_id);
    slot.phase = phase;
    slot.elapsed_step = 0;
    slot.statistics.return_now = 0;
  }

  // The request's seed as an int, once; None when there is none.
  nb::object take_seed(std::int32_t env_id) {
    Slot& slot = geometry_.slot(base_, env_id);
    if (slot.has_seed == 0) return nb::none();
    slot.has_seed = 0;
    std::uint8_t bytes[16];
    std::memcpy(bytes, slot.seed, sizeof(bytes));
    return nb::module_::import_("builtins").attr("int").attr("from_bytes")(nb::bytes(bytes, sizeof(bytes)), "little");
  }

  std::uint64_t request_bytes(std::int32_t env_id) const { return geometry_.slot(base_, env_id).request_bytes; }
  void set_reply_bytes(std::int32_t env_id, std::uint64_t count) { geometry_.slot(base_, env_id).reply_bytes = count; }
  std::uint64_t schema_bytes(std::uint32_t version) const { return geometry_.header(base_).schema_bytes[version]; }

  // Packs what the schema knows of an info; gives the rest as a dict, or None.
  nb::object pack_info(std::int32_t env_id, nb::dict info, bool is_final) {
    Slot& slot = geometry_.slot(base_, env_id);
    PyObject* extras = nullptr;
    const bool is_packed = pack(slot, env_id, info.ptr(), is_final, &extras);
    if (!is_packed) {
      Py_XDECREF(extras);
      throw nb::python_error();
    }
    return extras == nullptr ? nb::none() : nb::steal(extras);
  }

 private:
  void wait() {
    const std::int64_t start = engine::now_ns();
    words_->progress_ns.store(start, std::memory_order_relaxed);
    words_->current_env.store(-1, std::memory_order_relaxed);
    {
      nb::gil_scoped_release released;
      sleep(start);
    }
    clock_ns_ = engine::now_ns();
    words_->wait_ns += clock_ns_ - start;
  }

  void sleep(std::int64_t start) {
    rows::Header& header = geometry_.header(base_);
    const auto is_wanted = [&] {
      return words_->request_head.load(std::memory_order_seq_cst) != tail_ ||
             header.stop.load(std::memory_order_seq_cst) != 0;
    };
    if (spin_until(is_wanted, start)) return;
    words_->core.store(engine::this_core(), std::memory_order_relaxed);
    words_->sleeps.store(1, std::memory_order_seq_cst);
    for (;;) {
      const std::uint32_t seen = header.work_bell.load(std::memory_order_seq_cst);
      // After the bell was read: what is asked from here on rings it.
      if (is_wanted()) break;
      engine::wait_shared_while_equal(header.work_bell, seen, -1, rows::bit_of(worker_));
    }
    words_->sleeps.store(0, std::memory_order_seq_cst);
  }

  // A core that falls idle takes long to wake up: as many workers as there are cores look out for a while first.
  // They stand back at once for whoever else wants the core, the caller or a worker that was put beside them.
  template <class IsWanted>
  bool spin_until(IsWanted&& is_wanted, std::int64_t start) {
    if (max_spinners_ <= 0) return false;
    std::atomic<std::int32_t>& num_spinners = geometry_.header(base_).num_spinners;
    bool is_done = false;
    words_->spins.store(1);
    if (num_spinners.fetch_add(1) < max_spinners_) {
      do {
        for (int i = 0; i < 32 && !is_done; ++i) {
          is_done = is_wanted();
          engine::relax_cpu();
        }
        if (is_done) break;
        std::this_thread::yield();
      } while (engine::now_ns() - start < kSpinNs);
    }
    num_spinners.fetch_sub(1);
    words_->spins.store(0);
    return is_done;
  }

  void run_next() {
    const std::int32_t env_id = geometry_.requests(base_, worker_)[tail_ & (geometry_.ring_size - 1)];
    ++tail_;
    words_->request_tail.store(tail_, std::memory_order_relaxed);
    if (env_id < first_env_ || env_id >= end_env_) throw nb::value_error("the board asks for an env of another worker");
    const std::uint32_t version = geometry_.header(base_).schema_version.load(std::memory_order_acquire);
    if (version != schema_version_) [[unlikely]] {
      if (!schema_.load(nb::object(runner_.attr("schema")(version)).ptr())) throw nb::python_error();
      schema_version_ = version;
    }
    Slot& slot = geometry_.slot(base_, env_id);
    // One look at the clock an env: its end is the next one's beginning.
    const std::int64_t start = clock_ns_ != 0 ? clock_ns_ : engine::now_ns();
    words_->current_env.store(env_id, std::memory_order_relaxed);
    words_->progress_ns.store(start, std::memory_order_relaxed);
    slot.kind = rows::kGoodRow;
    slot.reply_bytes = 0;
    PyObject* interrupt = nullptr;
    try {
      if (slot.op == rows::kCall) {
        check(python([&] { return PyObject_CallMethod(runner_.ptr(), "call", "i", env_id); }));
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
    words_->busy_ns += now - start;
    slot.statistics.busy_ns += now - start;
    slot.statistics.slowest_ns = std::max(slot.statistics.slowest_ns, now - start);
    words_->progress_ns.store(now, std::memory_order_relaxed);
    finish(env_id);
    if (interrupt != nullptr && !is_inline_) Py_CLEAR(interrupt);  // Ctrl-C is the main thread's: here it is a fault
    if (interrupt != nullptr) {
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(interrupt)), interrupt);
      Py_DECREF(interrupt);
      throw nb::python_error();
    }
  }

  // The row of an env that raised outside of what is foreseen. Gives a KeyboardInterrupt (a new reference), else null.
  PyObject* give_up_row(std::int32_t env_id, Slot& slot, nb::python_error& error) {
    nb::object value = nb::borrow(error.value());
    const char* method = slot.op == rows::kReset ? "reset" : "step";
    PyObject* answer =
        python([&] { return PyObject_CallMethod(runner_.ptr(), "fault", "isO", env_id, method, value.ptr()); });
    if (answer == nullptr) {
      PyErr_Clear();
      count_fault(env_id, slot.op == rows::kReset);
      slot.reply_bytes = 0;
    }
    Py_XDECREF(answer);
    if (!PyErr_GivenExceptionMatches(value.ptr(), PyExc_KeyboardInterrupt)) return nullptr;
    return value.release().ptr();
  }

  void finish(std::int32_t env_id) {
    if (is_inline_) {  // nobody else looks, and nobody sleeps
      geometry_.done(base_, worker_)[done_ & (geometry_.ring_size - 1)] = {env_id, done_};
      words_->done_head.store(++done_, std::memory_order_relaxed);
      return;
    }
    rows::Header& header = geometry_.header(base_);
    geometry_.done(base_, worker_)[done_ & (geometry_.ring_size - 1)] = {env_id, header.order.fetch_add(1)};
    words_->done_head.store(++done_, std::memory_order_seq_cst);
    const std::uint32_t completed = header.completed.fetch_add(1, std::memory_order_seq_cst) + 1;
    if (header.caller_waits.load(std::memory_order_seq_cst) != 0 &&
        static_cast<std::int32_t>(completed - header.wanted.load(std::memory_order_seq_cst)) >= 0) {
      header.bell.fetch_add(1, std::memory_order_seq_cst);
      engine::wake_shared(header.bell);
    }
  }

  // Gives a KeyboardInterrupt that came while the env ran (a new reference), else null.
  PyObject* run(std::int32_t env_id, Slot& slot) {
    const nb::object& step = step_[env_id - first_env_];
    if (!step.is_valid() || step.is_none()) {
      check(
          python([&] { return PyObject_CallMethod(runner_.ptr(), "lost", "ii", env_id, slot.op == rows::kReset ? 1 : 0); }));
      return nullptr;
    }
    const bool is_reset = slot.op == rows::kReset || (autoreset_ == EF_NEXT_STEP && slot.phase == EF_ENDED);
    if (is_reset) return run_reset(env_id, slot);
    const bool then_reset = autoreset_ == EF_SAME_STEP;
    nb::object action =
        action_ ? action_.make(env_id) : nb::steal(PyObject_CallMethod(runner_.ptr(), "action", "i", env_id));
    PyObject* result = action.is_valid() ? python([&] { return call_step(step.ptr(), action.ptr()); }) : nullptr;
    if (result == nullptr) return fault(env_id, "step");
    nb::object held = nb::steal(result);
    if (!finish_plain_step(env_id, slot, result, then_reset)) {
      PyObject* flag = then_reset ? Py_True : Py_False;
      return check_interrupt(
          python([&] { return PyObject_CallMethod(runner_.ptr(), "finish_step", "iOO", env_id, result, flag); }));
    }
    return nullptr;
  }

  // A bound method is called as the function it is: one shuffle of arguments less.
  static PyObject* call_step(PyObject* step, PyObject* action) {
    if (!PyMethod_Check(step)) return PyObject_CallOneArg(step, action);
    PyObject* arguments[] = {PyMethod_GET_SELF(step), action};
    return PyObject_Vectorcall(PyMethod_GET_FUNCTION(step), arguments, 2, nullptr);
  }

  PyObject* run_reset(std::int32_t env_id, Slot& slot) {
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
      count_reset(env_id, false);
      return refresh(env_id);
    }
    return check_interrupt(python([&] { return PyObject_CallMethod(runner_.ptr(), "finish_reset", "iO", env_id, result); }));
  }

  // An env may bind another step in its reset.
  PyObject* refresh(std::int32_t env_id) {
    nb::object& env = env_[env_id - first_env_];
    if (!env.is_valid() || env.is_none()) return nullptr;
    PyObject* step = PyObject_GetAttrString(env.ptr(), "step");
    if (step == nullptr) throw nb::python_error();
    step_[env_id - first_env_] = nb::steal(step);
    return nullptr;
  }

  // False: something about it is not plain; the runner looks at the whole of it again.
  bool finish_plain_step(std::int32_t env_id, Slot& slot, PyObject* result, bool then_reset) {
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
    count_step(env_id, PyFloat_AS_DOUBLE(reward), terminated, truncated);
    return true;
  }

  static bool read_flag(PyObject* flag, bool* value) {
    if (PyBool_Check(flag)) {
      *value = flag == Py_True;
      return true;
    }
    if (!PyArray_IsScalar(flag, Bool)) return false;
    *value = PyObject_IsTrue(flag) == 1;
    return true;
  }

  bool write_info(std::int32_t env_id, Slot& slot, PyObject* info) {
    if (!PyDict_CheckExact(info)) return false;
    if (PyDict_GET_SIZE(info) == 0) return true;
    PyObject* extras = nullptr;
    if (!pack(slot, env_id, info, false, &extras)) {
      Py_XDECREF(extras);
      throw nb::python_error();
    }
    if (extras != nullptr) {
      PyObject* answer = PyObject_CallMethod(runner_.ptr(), "send_extras", "iN", env_id, extras);
      if (answer == nullptr) {
        // It cannot travel: the runner says so.
        PyErr_Clear();
        return false;
      }
      Py_DECREF(answer);
    }
    return true;
  }

  bool pack(Slot& slot, std::int32_t env_id, PyObject* info, bool is_final, PyObject** extras) const {
    const std::int64_t half = info_.row_bytes / 2;
    char* target = info_.row(env_id) + (is_final ? half : 0);
    std::uint64_t& mask = is_final ? slot.final_mask : slot.info_mask;
    mask = 0;
    return schema_.pack(info, target, &mask, extras);
  }

  PyObject* fault(std::int32_t env_id, const char* method) {
    nb::object error = take_exception();
    check(python([&] { return PyObject_CallMethod(runner_.ptr(), "fault", "isO", env_id, method, error.ptr()); }));
    if (!PyErr_GivenExceptionMatches(error.ptr(), PyExc_KeyboardInterrupt)) return nullptr;
    return error.release().ptr();
  }

  // What the runner answers: None, or a KeyboardInterrupt to be raised when the row is through.
  PyObject* check_interrupt(PyObject* answer) {
    if (answer == nullptr) throw nb::python_error();
    if (answer != Py_None) return answer;
    Py_DECREF(answer);
    return nullptr;
  }

  static void check(PyObject* answer) {
    if (answer == nullptr) throw nb::python_error();
    Py_DECREF(answer);
  }

  nb::object buffer_;
  std::byte* base_;
  rows::Geometry geometry_;
  std::int32_t worker_, first_env_, end_env_, autoreset_, limit_;
  std::int32_t max_spinners_;
  ObsColumn obs_;
  ActionColumn action_;
  BoardColumn info_;
  nb::object runner_;
  std::vector<nb::object> env_, step_, reset_;
  rows::WorkerWords* words_;
  std::uint32_t tail_, done_;
  std::int64_t clock_ns_ = 0;  // 0: not looked at since the last wait
  bool is_inline_ = false;
  std::uint32_t schema_version_ = 0;
  InfoSchema schema_;
};

}  // namespace

void bind_env_loop(nb::module_& module) {
  nb::class_<EnvLoop>(module, "EnvLoop")
      .def(nb::init<nb::object, std::int32_t, std::int32_t, std::int32_t, std::int32_t, std::int32_t, std::int32_t,
                    nb::object, nb::object, nb::object, nb::object>(),
           nb::arg("buffer"), nb::arg("num_envs"), nb::arg("num_workers"), nb::arg("worker"), nb::arg("autoreset"),
           nb::arg("max_episode_steps"), nb::arg("max_spinners"), nb::arg("obs").none(), nb::arg("action").none(),
           nb::arg("info"), nb::arg("runner"))
      .def("set_env", &EnvLoop::set_env, nb::arg("env_id"), nb::arg("env").none(), nb::arg("step").none(),
           nb::arg("reset").none())
      .def("detach", &EnvLoop::detach)
      .def("serve", &EnvLoop::serve)
      .def("run_pending", &EnvLoop::run_pending, nb::arg("deadline_ns"))
      .def("count_step", &EnvLoop::count_step)
      .def("count_reset", &EnvLoop::count_reset)
      .def("count_fault", &EnvLoop::count_fault)
      .def("set_phase", &EnvLoop::set_phase)
      .def("take_seed", &EnvLoop::take_seed)
      .def("request_bytes", &EnvLoop::request_bytes)
      .def("set_reply_bytes", &EnvLoop::set_reply_bytes)
      .def("schema_bytes", &EnvLoop::schema_bytes)
      .def("pack_info", &EnvLoop::pack_info);
}

}  // namespace envfleet::bindings
