// NativePool: one engine as Python sees it.
//
// step, send and recv answer False when the call is not plainly right; nothing has moved then, and
// the Python layer converts or explains it. None stands for a time limit that ran out.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <thread>

#include "batch_arrays.h"
#include "bindings.h"
#include "caller.h"
#include "checks.h"
#include "config_values.h"
#include "engine.h"
#include "env_types.h"
#include "fields_access.h"
#include "numpy_api.h"

namespace nb = nanobind;

namespace envfleet::bindings {

namespace {

using engine::BatchBuffer;
using engine::Engine;
using engine::Request;

constexpr std::int64_t kCloseTimeoutNs = 5'000'000'000;
constexpr double kHoldGilNs = 10'000;
constexpr double kPatientNs = 20'000'000;

// Ids that were given: none (all envs), or some, or not plainly right.
struct Ids {
  bool are_plain = false;
  const std::int32_t* data = nullptr;  // null: all
  std::int64_t count = 0;
};

class NativePool {
 public:
  NativePool(const std::string& id, std::int32_t num_envs, std::int32_t batch_size, std::int32_t num_threads,
             std::int32_t thread_affinity_offset, std::int32_t max_episode_steps, std::int32_t autoreset, nb::list configs,
             nb::object whole_ids) {
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

  ~NativePool() {
    if (engine_ == nullptr) return;
    if (engine_->is_forked()) {
      // Its threads are not here to be joined; the parent's copy is the one that counts.
      new std::shared_ptr<Engine>(std::move(engine_));
      return;
    }
    close();
  }

  // --- calls of the hot path -----------------------------------------------------------

  nb::object step(nb::handle actions, nb::handle env_ids, double timeout_s) {
    CallerGuard guard(*engine_);
    const Ids ids = plain_ids(env_ids);
    if (!ids.are_plain || has_late_batch() || !accept(ids, actions)) return nb::bool_(false);
    return run(Request::step, ids, timeout_s);
  }

  bool send(nb::handle actions, nb::handle env_ids) {
    CallerGuard guard(*engine_);
    const Ids ids = plain_ids(env_ids);
    if (!ids.are_plain || (has_late_batch() && !is_async()) || !accept(ids, actions)) return false;
    begin(Request::step, ids);
    return true;
  }

  nb::object recv(double timeout_s) {
    CallerGuard guard(*engine_);
    const std::int64_t timeout_ns = to_ns(timeout_s);
    // A batch in order that ran into its time limit comes first, also in an asynchronous pool.
    if (has_late_batch()) return finish(timeout_ns);
    if (!is_async() || engine_->num_in_flight < engine_->options().batch_size) return nb::bool_(false);
    BatchBuffer* batch = engine_->take(0);
    if (batch == nullptr) batch = wait_in_slices(timeout_ns, [&](std::int64_t slice) { return engine_->take(slice); });
    if (batch == nullptr) return nb::none();
    mark(batch->env_ids(), batch->num_rows, 0);
    return wrap(batch);
  }

  // The rows come back in the order of env_ids, which the Python layer has checked.
  nb::object reset(nb::handle env_ids, double timeout_s) {
    CallerGuard guard(*engine_);
    const Ids ids = checked_ids(env_ids);
    return run(Request::reset, ids, timeout_s);
  }

  void send_reset(nb::handle env_ids) {
    CallerGuard guard(*engine_);
    begin(Request::reset, checked_ids(env_ids));
  }

  // The present observations of all envs; only between batches.
  nb::object observe() {
    CallerGuard guard(*engine_);
    return run(Request::observe, {true, nullptr, engine_->options().num_envs}, -1);
  }

  // --- between batches -------------------------------------------------------------------

  // False: what is in flight did not end within the limit.
  bool abandon(double timeout_s) {
    CallerGuard guard(*engine_);
    const std::int64_t timeout_ns = to_ns(timeout_s);
    const bool done = wait_in_slices(timeout_ns, [&](std::int64_t slice) { return engine_->abandon(slice); });
    if (!done) return false;
    const std::int32_t num_envs = engine_->options().num_envs;
    std::fill_n(engine_->in_flight(), num_envs, 0);
    engine_->num_in_flight = 0;
    engine_->take_faults(nullptr, 0);
    return true;
  }

  // words: uint32 (rows, 4), one seed for each env.
  void seed(nb::handle env_ids, nb::handle words) {
    CallerGuard guard(*engine_);
    const Ids ids = checked_ids(env_ids);
    PyArrayObject* array = as_plain_array(words.ptr());
    if (array == nullptr || PyArray_TYPE(array) != NPY_UINT32 || PyArray_SIZE(array) != 4 * ids.count) {
      throw nb::value_error("seeds must be a contiguous uint32 array of shape (rows, 4)");
    }
    const auto* data = static_cast<const std::uint32_t*>(PyArray_DATA(array));
    for (std::int64_t i = 0; i < ids.count; ++i) engine_->seed(ids.data != nullptr ? ids.data[i] : i, data + 4 * i);
  }

  void rebuild(std::int32_t env_id, std::uint8_t phase) {
    CallerGuard guard(*engine_);
    check_range(env_id);
    engine_->rebuild(env_id, phase);
  }

  void set_reset_options(std::vector<std::pair<std::string, double>> options) {
    CallerGuard guard(*engine_);
    engine_->set_reset_options(std::move(options));
  }

  nb::bytes get_state(std::int32_t env_id) {
    CallerGuard guard(*engine_);
    check_range(env_id);
    const std::string state = engine_->get_state(env_id);
    return nb::bytes(state.data(), state.size());
  }

  void set_state(std::int32_t env_id, nb::bytes state) {
    CallerGuard guard(*engine_);
    check_range(env_id);
    engine_->set_state(env_id, state.c_str(), static_cast<std::int64_t>(state.size()));
  }

  // (height, width, rgb bytes)
  nb::tuple render(std::int32_t env_id) {
    CallerGuard guard(*engine_);
    check_range(env_id);
    struct Drawn {
      std::int32_t height = 0, width = 0;
      std::vector<std::uint8_t> rgb;
    } drawn;
    const auto sink = [](void* context, std::int32_t height, std::int32_t width, const std::uint8_t* rgb) {
      *static_cast<Drawn*>(context) = {height, width, {rgb, rgb + static_cast<std::size_t>(height) * width * 3}};
    };
    ef_error error{};
    const engine::FleetHandle& fleet = engine_->fleet();
    if (fleet.type().render(fleet.raw(), env_id, sink, &drawn, &error) != 0) throw engine::FleetError(error.message);
    return nb::make_tuple(drawn.height, drawn.width, nb::bytes(drawn.rgb.data(), drawn.rgb.size()));
  }

  nb::dict get_fields(std::int32_t env_id) {
    CallerGuard guard(*engine_);
    check_range(env_id);
    return read_fields(engine_->fleet(), env_id);
  }

  bool set_field(std::int32_t env_id, const std::string& name, nb::handle value) {
    CallerGuard guard(*engine_);
    check_range(env_id);
    return write_field(engine_->fleet(), env_id, name, value);
  }

  // --- what is known ---------------------------------------------------------------------

  nb::bytes phases() {
    CallerGuard guard(*engine_);
    return nb::bytes(engine_->phases(), static_cast<std::size_t>(engine_->options().num_envs));
  }
  nb::bytes in_flight() {
    CallerGuard guard(*engine_);
    return nb::bytes(engine_->in_flight(), static_cast<std::size_t>(engine_->options().num_envs));
  }
  // A tuple an env, in the order of statistics.EnvStats. Of envs that take nanoseconds the clock would take
  // longer than the env: times are 0.
  nb::list env_statistics() {
    CallerGuard guard(*engine_);
    nb::list all;
    for (const engine::EnvTally& own : engine_->tally()) {
      all.append(nb::make_tuple(own.num_steps, own.num_resets, own.num_episodes, own.return_sum, own.return_min,
                                own.return_max, own.length_sum, own.length_min, own.length_max, 0, 0));
    }
    return all;
  }
  std::int64_t num_in_flight() const { return engine_->num_in_flight; }
  // A batch in order was started, or ran into its time limit, and is still to be received.
  bool has_late_batch() const { return engine_->has_started(); }
  bool has_render() const { return engine_->spec().has_render != 0; }
  double ns_per_step() {
    CallerGuard guard(*engine_);
    return engine_->expected_ns(Request::step, 1);
  }
  std::int64_t num_buffers() const { return engine_->num_buffers(); }

  // False: an env is stuck, or another thread's call is; threads were left behind.
  bool close() {
    if (engine_->is_forked() || engine_->is_closed()) return true;
    return without_gil_if(true, [&] {
      // Another thread's call ends with its batch; from then on the pool is this thread's.
      const std::int64_t deadline = engine::now_ns() + kCloseTimeoutNs;
      while (!engine_->enter()) {
        if (engine::now_ns() > deadline) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      const bool all_left = engine_->close(kCloseTimeoutNs);
      engine_->leave();
      return all_left;
    });
  }

 private:
  bool is_async() const { return engine_->options().batch_size < engine_->options().num_envs; }
  static std::int64_t to_ns(double seconds) {
    return seconds < 0 ? -1 : static_cast<std::int64_t>(std::min(seconds, 1e9) * 1e9);
  }
  bool is_expected_below(double limit_ns, Request request, std::int64_t rows) {
    const double expected = engine_->expected_ns(request, rows);
    return expected > 0 && expected < limit_ns;
  }

  // A batch from start to end. One that may take long, or of which nothing is known yet, is left
  // to the crew: a caller who is inside an env hears no Ctrl-C.
  nb::object run(Request request, const Ids& ids, double timeout_s) {
    if (timeout_s >= 0 || !is_expected_below(kPatientNs, request, ids.count)) {
      start(request, ids);
      return finish(to_ns(timeout_s));
    }
    // Done before this call ends, so nobody sees these envs in flight.
    const bool release = !is_expected_below(kHoldGilNs, request, ids.count);
    return wrap(without_gil_if(release, [&] { return engine_->run(request, ids.data, ids.count); }));
  }

  void check_range(std::int32_t env_id) const {
    if (env_id < 0 || env_id >= engine_->options().num_envs) throw nb::index_error("no env of this id");
  }

  Ids plain_ids(nb::handle given) {
    const std::int32_t num_envs = engine_->options().num_envs;
    if (given.is_none()) return {engine_->num_in_flight == 0, nullptr, num_envs};
    PyArrayObject* array = as_plain_array(given.ptr());
    if (array == nullptr || PyArray_NDIM(array) != 1 || PyArray_TYPE(array) != NPY_INT32) return {};
    const auto* data = static_cast<const std::int32_t*>(PyArray_DATA(array));
    const std::int64_t count = PyArray_DIM(array, 0);
    if (count == 0 || !ids_->accepts(*engine_, data, count)) return {};
    return {true, data, count};
  }

  bool accept(const Ids& ids, nb::handle given) {
    const ef_array& space = engine_->spec().action;
    PyArrayObject* array = as_plain_array(given.ptr());
    if (array == nullptr || PyArray_NDIM(array) != 1 + space.ndim || PyArray_DIM(array, 0) != ids.count) return false;
    for (int axis = 0; axis < space.ndim; ++axis) {
      if (PyArray_DIM(array, axis + 1) != space.shape[axis]) return false;
    }
    const std::int32_t dtype = dtype_of_array(array);
    return dtype >= 0 && actions_->takes(dtype) && may_step(*engine_, ids.data, ids.count) &&
           actions_->store(engine_->action_slots(), PyArray_DATA(array), dtype, ids.data, ids.count);
  }

  Ids checked_ids(nb::handle given) {
    const Ids ids = plain_ids(given);
    if (!ids.are_plain) throw nb::value_error("env_ids must be idle, distinct and in range, as int32");
    return ids;
  }

  void mark(const std::int32_t* env_ids, std::int64_t count, std::uint8_t flag) {
    std::uint8_t* in_flight = engine_->in_flight();
    for (std::int64_t i = 0; i < count; ++i) in_flight[env_ids != nullptr ? env_ids[i] : i] = flag;
    engine_->num_in_flight += flag != 0 ? count : -count;
  }

  // A batch in the order of its ids. Marked when it is under way: what throws leaves nothing in flight.
  void start(Request request, const Ids& ids) {
    const bool release = !is_expected_below(kHoldGilNs, request, ids.count);
    without_gil_if(release, [&] { engine_->start(request, ids.data, ids.count); });
    mark(ids.data, ids.count, 1);
  }

  void begin(Request request, const Ids& ids) {
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

  nb::object finish(std::int64_t timeout_ns) {
    BatchBuffer* batch = engine_->finish(0, false);
    if (batch == nullptr) {
      batch = wait_in_slices(timeout_ns, [&](std::int64_t slice) { return engine_->finish(slice, false); });
    }
    if (batch == nullptr) return nb::none();
    mark(batch->is_whole ? nullptr : batch->env_ids(), batch->num_rows, 0);
    return wrap(batch);
  }

  // The batch's arrays, then None or the list of its faults: (env_id, method, what).
  nb::object wrap(BatchBuffer* batch) {
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
  PyObject* faults_of(const BatchBuffer& batch) {
    PyObject* list = PyList_New(0);
    const std::int32_t* env_ids = batch.is_whole ? nullptr : batch.env_ids();
    for (const engine::Fault& fault : engine_->take_faults(env_ids, batch.num_rows)) {
      // What an env throws need not be UTF-8.
      PyObject* what = PyUnicode_DecodeUTF8(fault.what.data(), static_cast<Py_ssize_t>(fault.what.size()), "replace");
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

  std::shared_ptr<Engine> engine_;
  std::optional<engine::IdChecker> ids_;
  std::optional<engine::ActionStore> actions_;
  std::optional<BatchArrays> arrays_;
  std::vector<std::int32_t> whole_;
};

}  // namespace

void bind_pool(nb::module_& module) {
  nb::exception<engine::FleetError>(module, "FleetError");
  nb::class_<NativePool>(module, "NativePool")
      .def(nb::init<const std::string&, std::int32_t, std::int32_t, std::int32_t, std::int32_t, std::int32_t, std::int32_t,
                    nb::list, nb::object>(),
           nb::arg("env_id"), nb::arg("num_envs"), nb::arg("batch_size"), nb::arg("num_threads"),
           nb::arg("thread_affinity_offset"), nb::arg("max_episode_steps"), nb::arg("autoreset"), nb::arg("configs"),
           nb::arg("whole_ids"))
      .def("step", &NativePool::step, nb::arg("actions").none(), nb::arg("env_ids").none(), nb::arg("timeout_s"))
      .def("send", &NativePool::send, nb::arg("actions").none(), nb::arg("env_ids").none())
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
      .def("close", &NativePool::close);
}

}  // namespace envfleet::bindings
