// In one file, so that a step is inlined as a whole.
#include "bindings/python_pool.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "bindings/bindings.h"
#include "bindings/python_calls.h"
#include "engine/split.h"
#include "engine/wait.h"
#include "envfleet/abi.h"
#include "envfleet/step_rule.h"

namespace nb = nanobind;

namespace envfleet::bindings {

using shm::Slot;

namespace {

// What an env sent beside its row, or as the result of a call(): num_bytes in the side channel.
struct Reply {
  std::int64_t row;
  std::int32_t env_id;
  bool is_lost;  // its worker died
  std::uint64_t num_bytes;
};

std::int32_t env_of(const std::int32_t* env_ids, std::int64_t row) {
  return env_ids != nullptr ? env_ids[row] : static_cast<std::int32_t>(row);
}

}  // namespace

// --------------------------------------------------------------------- ids and actions

bool CallIds::accept(const shm::CallerQueue& queue, nb::handle given) {
  if (given.is_none()) {
    if (queue.num_in_flight() != 0) return false;
    is_whole_ = true;
    if (has_all_) return true;
    list_.resize(num_envs_);
    for (std::int32_t env_id = 0; env_id < num_envs_; ++env_id) list_[env_id] = env_id;
    has_all_ = true;
    return true;
  }
  const IdArray ids = read_ids(given);
  const auto is_in_flight = [&](std::int32_t env_id) { return queue.is_in_flight(env_id); };
  if (ids.data == nullptr || !checker_.accepts(ids.data, ids.count, is_in_flight)) return false;
  list_.assign(ids.data, ids.data + ids.count);
  has_all_ = is_whole_ = false;
  return true;
}

ActionColumnStore::Space::Space(nb::dict given) {
  array.kind = nb::cast<std::int32_t>(given["kind"]);
  array.dtype = nb::cast<std::int32_t>(given["dtype"]);
  const auto shape = nb::cast<std::vector<std::int64_t>>(given["shape"]);
  array.ndim = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), array.shape);
  low = nb::cast<std::vector<double>>(given["low"]);
  high = nb::cast<std::vector<double>>(given["high"]);
  nvec = nb::cast<std::vector<std::int64_t>>(given["nvec"]);
  array.num_bounds = static_cast<std::int64_t>(low.size());
  array.low = low.data();
  array.high = high.data();
  array.nvec = nvec.data();
  array.start = nb::cast<std::int64_t>(given["start"]);
  array.count = nb::cast<std::int64_t>(given["count"]);
}

ActionColumnStore::ActionColumnStore(nb::handle column, nb::dict space)
    : column_(column), space_(space), store_(space_.array, true) {}

bool ActionColumnStore::store(nb::handle given, const std::int32_t* env_ids, std::int64_t count) const {
  const ActionArray actions = read_actions(given, space_.array, count);
  if (actions.dtype < 0 || !store_.takes(actions.dtype)) return false;
  return store_.store({column_.row(0), column_.row_bytes()}, actions.data, actions.dtype, env_ids, count);
}

// --------------------------------------------------------------------------- stepping

PythonPool::PythonPool(const PythonPoolOptions& options)
    : buffer_(options.buffer),
      queue_(reinterpret_cast<std::byte*>(PyArray_BYTES(as_array(options.buffer))),
             shm::SegmentLayout(options.num_envs, options.num_workers), options.may_spin, to_ns(options.step_timeout_s)),
      num_envs_(options.num_envs),
      batch_size_(options.batch_size),
      autoreset_(options.autoreset),
      info_(options.info),
      all_ids_(options.all_ids),
      copy_(options.copy),
      is_plain_(options.is_plain),
      run_inline_(options.run_inline),
      on_overdue_(options.on_overdue),
      ids_(options.num_envs) {
  if (!options.action_space.is_none()) actions_.emplace(options.action, nb::cast<nb::dict>(options.action_space));
  for (nb::handle column : options.obs) obs_.emplace_back(column);
  for (nb::handle column : options.final_obs) final_obs_.emplace_back(column);
  kept_ = KeptColumn::read(options.kept);
}

// Waits until missing() is not positive. Returns false after timeout_ns (negative: no limit). is_watched: workers that
// exceed the step timeout are killed; a constructor or render() may take longer.
template <class Missing>
bool PythonPool::wait_for(Missing&& missing, std::int64_t timeout_ns, bool is_watched) {
  const std::int64_t deadline = timeout_ns < 0 ? -1 : engine::now_ns() + timeout_ns;
  // Also if there is nothing to wait for: a caller that is slower than most envs would never notice otherwise.
  if (is_watched) kill_overdue();
  queue_.collect();
  while (missing() > 0) {
    if (!run_inline_.is_none()) {
      python([&] { run_inline_(deadline); });
      queue_.collect();
      if (missing() <= 0) break;
      if (guard_.is_cancelled()) raise_closed_while_waiting();
      return false;
    }
    const std::int64_t rest = deadline < 0 ? -1 : deadline - engine::now_ns();
    if (deadline >= 0 && rest <= 0) return false;
    {
      const std::int64_t wanted = missing();
      GilRelease released;
      queue_.wait(wanted, rest, is_watched);
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (guard_.is_cancelled()) raise_closed_while_waiting();
    if (is_watched) kill_overdue();
    queue_.collect();
  }
  return true;
}

void PythonPool::kill_overdue() {
  const std::vector<std::int32_t> late = queue_.overdue();
  for (std::size_t i = 0; i < late.size(); ++i) {
    try {
      python([&] { on_overdue_(late[i]); });
    } catch (...) {
      // Ctrl-C came before it was killed: reported again, or the pool would wait for it forever.
      for (; i < late.size(); ++i) queue_.report_again(late[i]);
      throw;
    }
  }
}

bool PythonPool::may_step() const {
  const auto phase_of = [this](std::int32_t env_id) { return queue_.slot(env_id).phase; };
  return engine::may_step(autoreset_, ids_.list().data(), ids_.count(), phase_of);
}

bool PythonPool::store(nb::handle actions) const {
  return actions_ && actions_->store(actions, ids_.data_or_null(), ids_.count());
}

// Messages in the side channel belong to an earlier request.
void PythonPool::clear_requests() {
  for (const std::int32_t env_id : ids_.list()) queue_.slot(env_id).request_bytes = 0;
}

void PythonPool::post(shm::Op op) {
  for (const std::int32_t env_id : ids_.list()) queue_.slot(env_id).op = op;
  queue_.post(ids_.list().data(), ids_.count());
}

void PythonPool::begin(shm::Op op) {
  if (!is_async()) return begin_ordered(op);
  post(op);
  count_in_flight(ids_.count());
}

void PythonPool::begin_ordered(shm::Op op) {
  ordered_ = ids_.list();
  is_ordered_whole_ = ids_.is_whole();
  post(op);
  if (op != shm::kCall) count_in_flight(ids_.count());
}

std::int64_t PythonPool::num_missing() const {
  std::int64_t missing = 0;
  for (const std::int32_t env_id : ordered_) missing += queue_.is_collected(env_id) ? 0 : 1;
  return missing;
}

void PythonPool::take_ordered() {
  for (const std::int32_t env_id : ordered_) queue_.take(env_id);
  ordered_.clear();
}

nb::object PythonPool::finish_ordered(nb::handle executor, std::int64_t timeout_ns) {
  if (!wait_for([&] { return num_missing(); }, timeout_ns)) return nb::none();
  taken_ = ordered_;
  take_ordered();
  return make_batch(executor, is_ordered_whole_ ? nullptr : taken_.data(), std::ssize(taken_));
}

// Returns rows that were taken. env_ids null: all envs.
nb::object PythonPool::make_batch(nb::handle executor, const std::int32_t* env_ids, std::int64_t count) {
  count_in_flight(-count);
  for (std::int64_t row = 0; row < count; ++row) settle_obs(env_of(env_ids, row));
  nb::object replies = replies_of(env_ids, count);
  const bool has_replies = replies.is_valid();
  nb::object rows = rows_of(env_ids, count, std::move(replies)).release();
  if (is_plain_ && !has_replies) return rows;
  // make_batch() calls this pool about its rows.
  struct AllowNestedCalls {
    explicit AllowNestedCalls(engine::CallGuard& guard) : guard(guard) { guard.set_in_call(false); }
    ~AllowNestedCalls() { guard.set_in_call(true); }
    engine::CallGuard& guard;
  } allow(guard_);
  return executor.attr("make_batch")(rows);
}

nb::object PythonPool::step(nb::handle executor, nb::handle actions, nb::handle env_ids, double timeout_s) {
  const Whole call(*this);
  if (!ordered_.empty() || !ids_.accept(queue_, env_ids) || !may_step() || !store(actions)) return nb::bool_(false);
  clear_requests();
  begin_ordered(shm::kStep);
  return finish_ordered(executor, to_ns(timeout_s));
}

bool PythonPool::send(nb::handle actions, nb::handle env_ids) {
  const Whole call(*this);
  if (!ordered_.empty() && !is_async()) return false;
  if (!ids_.accept(queue_, env_ids) || !may_step() || !store(actions)) return false;
  clear_requests();
  begin(shm::kStep);
  return true;
}

nb::object PythonPool::step_stored(nb::handle executor, nb::handle env_ids, double timeout_s) {
  const Part part(*this);
  if (!ordered_.empty() || !ids_.accept(queue_, env_ids) || !may_step()) return nb::bool_(false);
  begin_ordered(shm::kStep);
  return finish_ordered(executor, to_ns(timeout_s));
}

bool PythonPool::send_stored(nb::handle env_ids) {
  const Part part(*this);
  if ((!ordered_.empty() && !is_async()) || !ids_.accept(queue_, env_ids) || !may_step()) return false;
  begin(shm::kStep);
  return true;
}

nb::object PythonPool::recv(nb::handle executor, double timeout_s) {
  const Whole call(*this);
  const std::int64_t timeout_ns = to_ns(timeout_s);
  if (!ordered_.empty()) return finish_ordered(executor, timeout_ns);
  if (!is_async() || queue_.num_in_flight() < batch_size_) return nb::bool_(false);
  const auto missing = [&] { return batch_size_ - queue_.num_collected(); };
  if (!wait_for(missing, timeout_ns)) return nb::none();
  taken_.clear();
  for (std::int32_t row = 0; row < batch_size_; ++row) {
    taken_.push_back(queue_.first_collected());
    queue_.take(taken_.back());
  }
  return make_batch(executor, taken_.data(), batch_size_);
}

nb::object PythonPool::reset(nb::handle executor, nb::handle env_ids, double timeout_s) {
  const Part part(*this);
  set_checked_ids(env_ids);
  begin_ordered(shm::kReset);
  return finish_ordered(executor, to_ns(timeout_s));
}

void PythonPool::send_reset(nb::handle env_ids) {
  const Part part(*this);
  set_checked_ids(env_ids);
  begin(shm::kReset);
}

nb::object PythonPool::call(nb::handle env_ids) {
  const Part part(*this);
  set_checked_ids(env_ids);
  const std::vector<std::int32_t> called = ids_.list();
  begin_ordered(shm::kCall);
  try {
    wait_for([&] { return num_missing(); }, -1, false);
  } catch (...) {
    // Interrupted: the replies will never be read.
    is_call_abandoned_ = true;
    throw;
  }
  take_ordered();
  nb::list replies;
  for (std::size_t row = 0; row < called.size(); ++row) {
    const Slot& slot = queue_.slot(called[row]);
    replies.append(Reply{static_cast<std::int64_t>(row), called[row], slot.kind == shm::kLostRow, slot.reply_bytes});
  }
  return replies;
}

void PythonPool::finish_abandoned_call() {
  // Watched: a worker that never replies must not block the pool.
  wait_for([&] { return num_missing(); }, -1, true);
  take_ordered();
  is_call_abandoned_ = false;
}

nb::list PythonPool::observe() {
  const Part part(*this);
  nb::list leaves;
  for (const Column& column : obs_) leaves.append(column.gather(nullptr, num_envs_));
  return leaves;
}

nb::object PythonPool::elapsed_steps() {
  const Part part(*this);
  auto [array, elapsed_steps] = new_column<std::int32_t>(NPY_INT32, num_envs_);
  for (std::int32_t env_id = 0; env_id < num_envs_; ++env_id) elapsed_steps[env_id] = queue_.slot(env_id).elapsed_step;
  return std::move(array);
}

bool PythonPool::abandon(double timeout_s) {
  const Part part(*this);
  const auto missing = [&] { return queue_.num_in_flight() - queue_.num_collected(); };
  if (!wait_for(missing, to_ns(timeout_s))) return false;
  for (std::int32_t env_id = 0; env_id < num_envs_; ++env_id) {
    if (!queue_.is_in_flight(env_id)) continue;
    settle_obs(env_id);
    queue_.take(env_id);
  }
  ordered_.clear();
  num_in_flight_.store(0, std::memory_order_relaxed);
  return true;
}

// ------------------------------------------------------------------- rows as arrays

Rows PythonPool::rows_of(const std::int32_t* env_ids, std::int64_t count, nb::object replies) const {
  Rows rows;
  const bool is_view = !copy_ && env_ids == nullptr;
  nb::object obs = checked(PyTuple_New(std::ssize(obs_)));
  for (std::size_t k = 0; k < obs_.size(); ++k) {
    PyTuple_SET_ITEM(obs.ptr(), k, is_view ? obs_[k].view() : obs_[k].gather(env_ids, count).release().ptr());
  }
  rows.set(Rows::kObs, std::move(obs));
  set_numbers(rows, env_ids, count);
  rows.set(Rows::kInfo, unpack_info(env_ids, count, false));
  if (has_final_rows(autoreset_)) set_final_rows(rows, env_ids, count);
  if (replies.is_valid()) rows.set(Rows::kReplies, std::move(replies));
  return rows;
}

// Settles what the row of an env that was collected shows: its new observation, which is its last one from now on, or, if
// it raised or died with its worker, the last one; without kept columns zeros, which an env that raised has already.
void PythonPool::settle_obs(std::int32_t env_id) {
  Slot& slot = queue_.slot(env_id);
  if (slot.kind == shm::kGoodRow) {
    if (!kept_.empty()) slot.last_copy ^= 1;
  } else if (!kept_.empty()) {
    for (const KeptColumn& column : kept_) column.restore(slot, env_id);
  } else if (slot.kind == shm::kLostRow) {
    for (const Column& column : obs_) column.clear_row(env_id);
  }
}

// A list of Reply; invalid if there are none.
nb::object PythonPool::replies_of(const std::int32_t* env_ids, std::int64_t count) const {
  nb::object replies;
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int32_t env_id = env_of(env_ids, row);
    const Slot& slot = queue_.slot(env_id);
    if (slot.kind == shm::kGoodRow && slot.reply_bytes == 0) continue;
    const bool is_lost = slot.kind == shm::kLostRow;
    if (!replies.is_valid()) replies = nb::list();
    nb::borrow<nb::list>(replies).append(Reply{row, env_id, is_lost, slot.reply_bytes});
  }
  return replies;
}

void PythonPool::set_numbers(Rows& rows, const std::int32_t* env_ids, std::int64_t count) const {
  auto [reward, rewards] = new_column<double>(NPY_FLOAT64, count);
  auto [terminated, terminated_flags] = new_column<bool>(NPY_BOOL, count);
  auto [truncated, truncated_flags] = new_column<bool>(NPY_BOOL, count);
  auto [elapsed_step, elapsed_steps] = new_column<std::int32_t>(NPY_INT32, count);
  for (std::int64_t row = 0; row < count; ++row) {
    const Slot& slot = queue_.slot(env_of(env_ids, row));
    rewards[row] = slot.reward;
    terminated_flags[row] = slot.terminated != 0;
    truncated_flags[row] = slot.truncated != 0;
    elapsed_steps[row] = slot.elapsed_step;
  }
  rows.set(Rows::kReward, std::move(reward));
  rows.set(Rows::kTerminated, std::move(terminated));
  rows.set(Rows::kTruncated, std::move(truncated));
  rows.set(Rows::kElapsedStep, std::move(elapsed_step));
  if (env_ids == nullptr) {
    rows.set(Rows::kEnvId, all_ids_);
  } else {
    auto [env_id, ids] = new_column<std::int32_t>(NPY_INT32, count);
    std::memcpy(ids, env_ids, static_cast<std::size_t>(count) * sizeof(std::int32_t));
    rows.set(Rows::kEnvId, std::move(env_id));
  }
}

void PythonPool::set_final_rows(Rows& rows, const std::int32_t* env_ids, std::int64_t count) const {
  const auto has_final = [&](std::int32_t env_id) { return queue_.slot(env_id).has_final != 0; };
  nb::object obs = checked(PyTuple_New(std::ssize(final_obs_)));
  for (std::size_t k = 0; k < final_obs_.size(); ++k) {
    PyTuple_SET_ITEM(obs.ptr(), k, final_obs_[k].gather_some(env_ids, count, has_final).release().ptr());
  }
  auto [elapsed_step, elapsed_steps] = new_column<std::int32_t>(NPY_INT32, count);
  for (std::int64_t row = 0; row < count; ++row) {
    const Slot& slot = queue_.slot(env_of(env_ids, row));
    elapsed_steps[row] = slot.has_final != 0 ? slot.final_elapsed_step : 0;
  }
  rows.set(Rows::kFinalObs, std::move(obs));
  rows.set(Rows::kFinalElapsedStep, std::move(elapsed_step));
  rows.set(Rows::kFinalInfo, unpack_info(env_ids, count, true));
}

// A dict, or None if no row has a value; a new reference, or null with a Python error set.
PyObject* PythonPool::unpack_info(const std::int32_t* env_ids, std::int64_t count, bool is_final) const {
  const auto mask_of = [&](std::int64_t row) {
    const Slot& slot = queue_.slot(env_of(env_ids, row));
    return is_final ? slot.final_mask : slot.info_mask;
  };
  std::uint64_t any = 0;
  for (std::int64_t row = 0; row < count; ++row) any |= mask_of(row);
  if (any == 0) return Py_NewRef(Py_None);
  struct Row {
    const char* bytes;
    std::uint64_t mask;
  };
  const std::int64_t half = info_.row_bytes() / 2;
  return schema_.unpack(
      count, [&](std::int64_t row) { return Row{info_.row(env_of(env_ids, row)) + (is_final ? half : 0), mask_of(row)}; });
}

// -------------------------------------------------------------------- between batches

void PythonPool::seed(nb::handle env_ids, nb::handle words) {
  const Part part(*this);
  set_checked_ids(env_ids);
  const std::uint32_t* next = read_seeds(words, ids_.count());
  for (const std::int32_t env_id : ids_.list()) {
    Slot& slot = queue_.slot(env_id);
    std::memcpy(slot.seed, next, sizeof(slot.seed));
    slot.has_seed = 1;
    next += 4;
  }
}

void PythonPool::restore_last_obs(std::int32_t env_id, bool is_rejected) {
  const Part part(*this);
  Slot& slot = slot_of(env_id);
  if (is_rejected) slot.last_copy ^= 1;
  for (const KeptColumn& column : kept_) column.restore(slot, env_id);
}

void PythonPool::keep_obs(std::int32_t env_id) {
  const Part part(*this);
  Slot& slot = slot_of(env_id);
  for (const KeptColumn& column : kept_) column.keep(slot, env_id);
  slot.last_copy ^= 1;
}

void PythonPool::set_request_bytes(std::int32_t env_id, std::uint64_t count) {
  const Part part(*this);
  slot_of(env_id).request_bytes = count;
}

void PythonPool::set_phase(std::int32_t env_id, std::uint8_t phase) {
  const Part part(*this);
  slot_of(env_id).phase = phase;
}

bool PythonPool::was_reset(std::int32_t env_id) {
  const Part part(*this);
  return slot_of(env_id).op == shm::kReset;
}

bool PythonPool::has_late_batch() {
  const Part part(*this);
  return !ordered_.empty();
}

std::uint32_t PythonPool::next_schema_version() {
  const Part part(*this);
  return queue_.header().schema_version.load() + 1;
}

nb::dict PythonPool::get_episode(std::int32_t env_id) {
  const Part part(*this);
  const Slot& slot = slot_of(env_id);
  nb::dict episode;
  episode["phase"] = slot.phase;
  episode["elapsed_step"] = slot.elapsed_step;
  episode["seed"] =
      slot.has_seed == 0 ? nb::object(nb::none()) : nb::make_tuple(slot.seed[0], slot.seed[1], slot.seed[2], slot.seed[3]);
  episode["current_return"] = slot.statistics.current_return.get();
  return episode;
}

void PythonPool::set_episode(std::int32_t env_id, nb::kwargs given) {
  const Part part(*this);
  Slot& slot = slot_of(env_id);
  std::uint8_t phase = 0;
  std::int32_t elapsed_step = 0;
  nb::object seed;
  double current_return = 0;
  Keywords("set_episode()", given)
      .read("phase", phase)
      .read("elapsed_step", elapsed_step)
      .read("seed", seed)
      .read("current_return", current_return)
      .finish();
  if (!seed.is_none()) {
    for (int i = 0; i < 4; ++i) slot.seed[i] = nb::cast<std::uint32_t>(seed[i]);
  }
  slot.has_seed = seed.is_none() ? 0 : 1;
  slot.phase = phase;
  slot.elapsed_step = elapsed_step;
  slot.statistics.current_return = current_return;
}

void PythonPool::publish_schema(nb::list entries, std::uint64_t count) {
  const Part part(*this);
  if (!schema_.load(entries.ptr())) throw nb::python_error();
  shm::Header& header = queue_.header();
  const std::uint32_t version = header.schema_version.load(std::memory_order_relaxed) + 1;
  if (version > shm::kMaxSchemas) throw nb::value_error("more schemas than a mask has bits");
  header.schema_bytes[version] = count;
  header.schema_version.store(version, std::memory_order_release);
}

void PythonPool::revive(std::int32_t worker) {
  const Part part(*this);
  queue_.revive(worker);
}

nb::bytes PythonPool::phases() {
  const Part part(*this);
  // The slot of an env in flight is its worker's: it counts as running until its row arrives.
  return bytes_of_envs(num_envs_, [&](std::int32_t env_id) -> std::uint8_t {
    return queue_.is_in_flight(env_id) ? EF_RUNNING : queue_.slot(env_id).phase;
  });
}

nb::bytes PythonPool::in_flight() {
  const Part part(*this);
  return bytes_of_envs(num_envs_, [&](std::int32_t env_id) { return queue_.is_in_flight(env_id) ? 1 : 0; });
}

nb::list PythonPool::env_statistics() {
  refuse_forked(guard_);
  nb::list all;
  for (std::int32_t env_id = 0; env_id < num_envs_; ++env_id) all.append(to_python(queue_.slot(env_id).statistics.read()));
  return all;
}

nb::list PythonPool::worker_statistics() {
  refuse_forked(guard_);
  nb::list all;
  for (std::int32_t worker = 0; worker < queue_.layout().num_workers; ++worker) {
    const shm::WorkerState& state = queue_.worker(worker);
    all.append(nb::make_tuple(state.busy_ns.get(), state.wait_ns.get()));
  }
  return all;
}

void PythonPool::interrupt() {
  queue_.stop();
  queue_.wake_caller();
}

// ----------------------------------------------------------------------------- module

void bind_python_pool(nb::module_& module) {
  module.def(
      "segment_bytes",
      [](std::int32_t num_envs, std::int32_t num_workers) { return shm::SegmentLayout(num_envs, num_workers).num_bytes(); },
      nb::arg("num_envs"), nb::arg("num_workers"));
  module.def("first_env_of", &engine::first_of_part, nb::arg("num_envs"), nb::arg("num_workers"), nb::arg("worker"));
  nb::class_<Reply>(module, "Reply")
      .def_ro("row", &Reply::row)
      .def_ro("env_id", &Reply::env_id)
      .def_ro("is_lost", &Reply::is_lost)
      .def_ro("num_bytes", &Reply::num_bytes);
  nb::class_<PythonPool>(module, "PythonPool")
      .def("__init__",
           [](PythonPool* self, nb::kwargs given) {
             PythonPoolOptions options;
             Keywords("PythonPool()", given)
                 .read("buffer", options.buffer)
                 .read("num_envs", options.num_envs)
                 .read("num_workers", options.num_workers)
                 .read("batch_size", options.batch_size)
                 .read("autoreset", options.autoreset)
                 .read("may_spin", options.may_spin)
                 .read("step_timeout_s", options.step_timeout_s)
                 .read("obs", options.obs)
                 .read("final_obs", options.final_obs)
                 .read("kept", options.kept)
                 .read("action", options.action)
                 .read("action_space", options.action_space)
                 .read("info", options.info)
                 .read("all_ids", options.all_ids)
                 .read("copy", options.copy)
                 .read("is_plain", options.is_plain)
                 .read("run_inline", options.run_inline)
                 .read("on_overdue", options.on_overdue)
                 .finish();
             new (self) PythonPool(options);
           })
      .def("step", &PythonPool::step, nb::arg("executor"), nb::arg("actions").none(), nb::arg("env_ids").none(),
           nb::arg("timeout_s"))
      .def("send", &PythonPool::send, nb::arg("actions").none(), nb::arg("env_ids").none())
      .def("step_stored", &PythonPool::step_stored, nb::arg("executor"), nb::arg("env_ids").none(), nb::arg("timeout_s"))
      .def("send_stored", &PythonPool::send_stored, nb::arg("env_ids").none())
      .def("recv", &PythonPool::recv, nb::arg("executor"), nb::arg("timeout_s"))
      .def("reset", &PythonPool::reset, nb::arg("executor"), nb::arg("env_ids").none(), nb::arg("timeout_s"))
      .def("send_reset", &PythonPool::send_reset, nb::arg("env_ids").none())
      .def("call", &PythonPool::call, nb::arg("env_ids").none())
      .def("observe", &PythonPool::observe)
      .def("elapsed_steps", &PythonPool::elapsed_steps)
      .def("abandon", &PythonPool::abandon, nb::arg("timeout_s"))
      .def("finish_abandoned_call", [](PythonPool& self) { const PoolCall<PartialCall> call(self); })
      .def("seed", &PythonPool::seed, nb::arg("env_ids").none(), nb::arg("words"))
      .def("restore_last_obs", &PythonPool::restore_last_obs, nb::arg("env_id"), nb::arg("is_rejected"))
      .def("keep_obs", &PythonPool::keep_obs, nb::arg("env_id"))
      .def("set_request_bytes", &PythonPool::set_request_bytes, nb::arg("env_id"), nb::arg("count"))
      .def("set_phase", &PythonPool::set_phase, nb::arg("env_id"), nb::arg("phase"))
      .def("get_episode", &PythonPool::get_episode, nb::arg("env_id"))
      .def("set_episode", &PythonPool::set_episode, nb::arg("env_id"), nb::arg("episode"))
      .def("was_reset", &PythonPool::was_reset, nb::arg("env_id"))
      .def_prop_ro("next_schema_version", &PythonPool::next_schema_version)
      .def("publish_schema", &PythonPool::publish_schema, nb::arg("entries"), nb::arg("count"))
      .def("mark_dead", &PythonPool::mark_dead, nb::arg("worker"))
      .def("revive", &PythonPool::revive, nb::arg("worker"))
      .def("is_dead", &PythonPool::is_dead, nb::arg("worker"))
      .def("is_at_prompt", &PythonPool::is_at_prompt, nb::arg("worker"))
      .def("worker_of", &PythonPool::worker_of, nb::arg("env_id"))
      .def("current_env", &PythonPool::current_env, nb::arg("worker"))
      .def("phases", &PythonPool::phases)
      .def("in_flight", &PythonPool::in_flight)
      .def_prop_ro("num_in_flight", &PythonPool::num_in_flight)
      .def_prop_ro("has_late_batch", &PythonPool::has_late_batch)
      .def("env_statistics", &PythonPool::env_statistics)
      .def("worker_statistics", &PythonPool::worker_statistics)
      .def_prop_ro("call_guard", &PythonPool::call_guard, nb::rv_policy::reference_internal)
      .def("interrupt", &PythonPool::interrupt);
}

}  // namespace envfleet::bindings
