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
#include "shm/slot_updates.h"

namespace nb = nanobind;

namespace envfleet::bindings {

using shm::Slot;

namespace {

std::int32_t env_of(const std::int32_t* env_ids, std::int64_t row) {
  return env_ids != nullptr ? env_ids[row] : static_cast<std::int32_t>(row);
}

// A new tuple of what make(column), a new reference, returns for each column.
template <class Make>
PyObject* tuple_of(const std::vector<Column>& columns, Make&& make) {
  nb::object made = checked(PyTuple_New(std::ssize(columns)));
  for (std::size_t k = 0; k < columns.size(); ++k) PyTuple_SET_ITEM(made.ptr(), k, make(columns[k]));
  return made.release().ptr();
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

PythonPool::PythonPool(const PythonPoolOptions& options)
    : buffer_(options.buffer),
      queue_(reinterpret_cast<std::byte*>(PyArray_BYTES(as_array(options.buffer))),
             shm::SegmentLayout(options.num_envs, options.num_workers), options.may_spin, to_ns(options.step_timeout_s)),
      num_envs_(options.num_envs),
      batch_size_(options.batch_size),
      autoreset_(options.autoreset),
      info_(options.info),
      all_ids_(options.all_ids),
      batch_class_(options.batch_type),
      copy_(options.copy),
      is_single_(options.is_single),
      run_inline_(options.run_inline),
      on_overdue_(options.on_overdue),
      ids_(options.num_envs) {
  if (!options.action_space.is_none()) actions_.emplace(options.action, nb::cast<nb::dict>(options.action_space));
  for (nb::handle column : options.obs) obs_.emplace_back(column);
  for (nb::handle column : options.final_obs) final_obs_.emplace_back(column);
  kept_ = KeptColumn::read(options.kept);
}

// ---------------------------------------------------------------------------- waiting

// May be called without the GIL.
void PythonPool::kill_overdue() {
  for (const std::int32_t worker : queue_.overdue()) {
    const GilAcquire gil;
    try {
      python([&] { on_overdue_(worker); });
    } catch (...) {
      // A signal handler raised before it was killed: the pool would wait for it forever.
      queue_.report_again(worker);
      throw;
    }
  }
}

// Whether nothing is missing. is_watched: workers that exceed the step timeout are killed; a constructor or render() may
// take longer. Also if there is nothing to wait for: a caller that is slower than most envs would never notice otherwise.
template <class Missing>
bool PythonPool::is_complete(Missing&& missing, bool is_watched) {
  if (is_watched) kill_overdue();
  queue_.collect();
  return missing() <= 0;
}

// Waits without the GIL.
template <class Missing>
bool PythonPool::attempt(Missing&& missing, std::int64_t slice_ns, bool is_watched) {
  const std::int64_t end = engine::now_ns() + slice_ns;
  while (!is_complete(missing, is_watched)) {
    const std::int64_t rest = end - engine::now_ns();
    if (rest <= 0) return false;
    queue_.wait(missing(), rest, is_watched);
  }
  return true;
}

// Runs the envs in this thread. An exception that ends that struck inside an env: the pool is interrupted.
template <class Missing>
bool PythonPool::run_here(Missing&& missing, std::int64_t timeout_ns) {
  const std::int64_t deadline = timeout_ns < 0 ? -1 : engine::now_ns() + timeout_ns;
  try {
    python([&] { run_inline_(deadline); });
  } catch (nb::python_error&) {
    guard_.set_interrupted(true);
    throw;
  }
  queue_.collect();
  if (missing() <= 0) return true;
  if (guard_.is_cancelled()) raise_closed_while_waiting();
  return false;
}

// Waits until missing() is not positive. Returns false after timeout_ns (negative: no limit).
template <class Missing>
bool PythonPool::wait_for(Missing&& missing, std::int64_t timeout_ns) {
  if (is_complete(missing, true)) return true;  // with the GIL: nothing to wait for
  if (!run_inline_.is_none()) return run_here(missing, timeout_ns);
  return wait_in_slices(guard_, timeout_ns, [&](std::int64_t slice_ns) { return attempt(missing, slice_ns, true); });
}

// The same for a call that has sent what it waits for. discard(): takes the rows, without returning them.
template <class Missing, class Discard>
bool PythonPool::wait_or_discard_rows(Missing&& missing, std::int64_t timeout_ns, bool is_watched, Discard&& discard) {
  if (!run_inline_.is_none()) return run_here(missing, timeout_ns);
  return wait_or_discard(
      guard_, timeout_ns, [&](std::int64_t slice_ns) { return attempt(missing, slice_ns, is_watched); },
      [&](bool) { discard(); });
}

// --------------------------------------------------------------------------- stepping

bool PythonPool::accept_step(nb::handle env_ids) {
  // Of a synchronous pool, one batch is in flight at a time.
  if ((!ordered_.empty() && !is_async()) || !ids_.accept(queue_, env_ids)) return false;
  const auto phase_of = [this](std::int32_t env_id) { return queue_.slot(env_id).phase; };
  return engine::may_step(autoreset_, ids_.list().data(), ids_.count(), phase_of);
}

// Whether the accepted envs and those in flight make a batch.
bool PythonPool::would_fill() const {
  return !is_async() || !ordered_.empty() || queue_.num_in_flight() + ids_.count() >= batch_size_;
}

bool PythonPool::store(nb::handle actions) const {
  return actions_ && actions_->store(actions, ids_.data_or_null(), ids_.count());
}

// Messages in the side channel belong to an earlier request.
void PythonPool::forget_requests() {
  for (const std::int32_t env_id : ids_.list()) queue_.slot(env_id).request_bytes = 0;
}

void PythonPool::post(shm::Op op) {
  for (const std::int32_t env_id : ids_.list()) {
    queue_.slot(env_id).op = op;
    if (op == shm::kReset) forget_fault(env_id);
  }
  if (op != shm::kCall) count_in_flight(ids_.count());
  queue_.post(ids_.list().data(), ids_.count());
}

void PythonPool::begin(shm::Op op) { is_async() ? post(op) : begin_ordered(op); }

void PythonPool::begin_ordered(shm::Op op) {
  ordered_ = ids_.list();
  is_ordered_whole_ = ids_.is_whole();
  post(op);
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

// Takes the rows that are complete: the ordered batch, or the first batch_size rows.
void PythonPool::take_rows() {
  is_taken_whole_ = !ordered_.empty() && is_ordered_whole_;
  if (!ordered_.empty()) {
    taken_ = ordered_;
    take_ordered();
  } else {
    taken_.clear();
    for (std::int32_t row = 0; row < batch_size_; ++row) {
      taken_.push_back(queue_.first_collected());
      queue_.take(taken_.back());
    }
  }
  count_in_flight(-std::ssize(taken_));
  for (const std::int32_t env_id : taken_) settle(env_id);
}

// Settles what the row of an env that was taken shows: its new observation, which is its last one from now on, or, if it
// raised or died with its worker, the last one; without kept columns zeros, which an env that raised has already.
void PythonPool::settle(std::int32_t env_id) {
  Slot& slot = queue_.slot(env_id);
  if (slot.kind == shm::kGoodRow) {
    if (!kept_.empty()) slot.last_copy ^= 1;
    return;
  }
  for (const KeptColumn& column : kept_) column.restore(slot, env_id);
  if (kept_.empty() && slot.kind == shm::kLostRow) {
    for (const Column& column : obs_) column.clear_row(env_id);
  }
  faults_.push_back(reply_of(-1, env_id));
  guard_.set_unreported(true);
}

Reply PythonPool::reply_of(std::int64_t row, std::int32_t env_id) const {
  const Slot& slot = queue_.slot(env_id);
  return {row, env_id, slot.kind != shm::kGoodRow, slot.kind == shm::kLostRow, slot.op == shm::kReset, slot.reply_bytes};
}

void PythonPool::forget_fault(std::int32_t env_id) {
  if (faults_.empty()) [[likely]]
    return;
  std::erase_if(faults_, [&](const Reply& fault) { return fault.env_id == env_id; });
  if (faults_.empty()) guard_.set_unreported(false);
}

// Returns the batch of a call that has sent its envs, or None.
nb::object PythonPool::receive_or_discard(CallScope& call, double timeout_s) {
  const auto discard = [&] {
    take_rows();
    guard_.end_parts();
  };
  if (!wait_or_discard_rows([&] { return num_rows_missing(); }, to_ns(timeout_s), true, discard)) return nb::none();
  take_rows();
  return make_batch(call);
}

nb::object PythonPool::step(nb::handle actions, nb::handle env_ids, double timeout_s) {
  WholeCall call(guard_);
  if (call.needs_attention() || !accept_step(env_ids) || !would_fill() || !store(actions)) return nb::bool_(false);
  forget_requests();
  begin(shm::kStep);
  return receive_or_discard(call, timeout_s);
}

bool PythonPool::send(nb::handle actions, nb::handle env_ids) {
  const WholeCall call(guard_);
  if (call.needs_attention() || !accept_step(env_ids) || !store(actions)) return false;
  forget_requests();
  begin(shm::kStep);
  return true;
}

nb::object PythonPool::step_stored(nb::handle env_ids, double timeout_s) {
  PartialCall call(guard_);
  if (!accept_step(env_ids) || !would_fill()) return nb::bool_(false);
  begin(shm::kStep);
  return receive_or_discard(call, timeout_s);
}

bool PythonPool::send_stored(nb::handle env_ids) {
  const PartialCall call(guard_);
  if (!accept_step(env_ids)) return false;
  begin(shm::kStep);
  return true;
}

nb::object PythonPool::recv(double timeout_s) {
  WholeCall call(guard_);
  if (call.needs_attention()) return nb::bool_(false);
  if (ordered_.empty() && (!is_async() || queue_.num_in_flight() < batch_size_)) return nb::bool_(false);
  if (!wait_for([&] { return num_rows_missing(); }, to_ns(timeout_s))) return nb::none();
  take_rows();
  return make_batch(call);
}

nb::object PythonPool::reset(nb::handle env_ids, double timeout_s) {
  PartialCall call(guard_);
  set_checked_ids(env_ids);
  begin_ordered(shm::kReset);
  return receive_or_discard(call, timeout_s);
}

void PythonPool::send_reset(nb::handle env_ids) {
  const PartialCall call(guard_);
  set_checked_ids(env_ids);
  begin(shm::kReset);
}

nb::list PythonPool::call(nb::handle env_ids) {
  const PartialCall call(guard_);
  set_checked_ids(env_ids);
  begin_ordered(shm::kCall);
  wait_or_discard_rows([&] { return num_missing(); }, -1, false, [&] { take_ordered(); });
  const std::vector<std::int32_t> called = ordered_;
  take_ordered();
  nb::list replies;
  for (std::size_t row = 0; row < called.size(); ++row) {
    replies.append(reply_of(static_cast<std::int64_t>(row), called[row]));
  }
  return replies;
}

bool PythonPool::drop_pending(double timeout_s) {
  const PartialCall call(guard_);
  const auto missing = [&] { return queue_.num_in_flight() - queue_.num_collected(); };
  // Watched: a worker that never finishes what an interrupted call has left must not block the pool.
  if (!wait_for(missing, to_ns(timeout_s))) return false;
  for (std::int32_t env_id = 0; env_id < num_envs_; ++env_id) {
    if (!queue_.is_in_flight(env_id)) continue;
    queue_.take(env_id);
    if (queue_.slot(env_id).op != shm::kCall) settle(env_id);
  }
  ordered_.clear();
  num_in_flight_.store(0, std::memory_order_relaxed);
  return true;
}

nb::list PythonPool::faults() {
  const PartialCall call(guard_);
  nb::list found;
  for (const Reply& fault : faults_) found.append(fault);
  return found;
}

void PythonPool::clear_faults() {
  const PartialCall call(guard_);
  faults_.clear();
  guard_.set_unreported(false);
}

nb::list PythonPool::observe() {
  const PartialCall call(guard_);
  nb::list leaves;
  for (const Column& column : obs_) leaves.append(column.gather(nullptr, num_envs_));
  return leaves;
}

nb::object PythonPool::elapsed_steps() {
  const PartialCall call(guard_);
  auto [array, elapsed_steps] = new_column<std::int32_t>(NPY_INT32, num_envs_);
  for (std::int32_t env_id = 0; env_id < num_envs_; ++env_id) elapsed_steps[env_id] = queue_.slot(env_id).elapsed_step;
  return std::move(array);
}

// ------------------------------------------------------------------- rows as arrays

// A batch as Batch documents it, except for what the Python layer completes: an observation that is not one array is the
// tuple of its stored columns, final is (obs, elapsed_step, info), and faults is a list of Reply if there are any.
nb::object PythonPool::make_batch(CallScope& call) const {
  const std::int32_t* env_ids = is_taken_whole_ ? nullptr : taken_.data();
  const std::int64_t count = std::ssize(taken_);
  nb::object batch = batch_class_.make();
  batch_class_.set(batch, BatchClass::kObs, obs_rows(env_ids, count));
  set_numbers(batch, env_ids, count);
  batch_class_.set(batch, BatchClass::kInfo, unpack_info(env_ids, count, false));
  batch_class_.set(batch, BatchClass::kFinal, has_final_rows(autoreset_) ? final_rows(env_ids, count) : Py_NewRef(Py_None));
  PyObject* sent = replies(env_ids, count);
  batch_class_.set(batch, BatchClass::kFaults, sent);
  if (!is_single_ || has_final_rows(autoreset_) || PyList_Check(sent)) call.reserve();
  return batch;
}

PyObject* PythonPool::obs_rows(const std::int32_t* env_ids, std::int64_t count) const {
  const auto rows_of = [&](const Column& column) {
    return !copy_ && env_ids == nullptr ? column.view() : column.gather(env_ids, count).release().ptr();
  };
  return is_single_ ? rows_of(obs_[0]) : tuple_of(obs_, rows_of);
}

// A list of Reply, or an empty tuple.
PyObject* PythonPool::replies(const std::int32_t* env_ids, std::int64_t count) const {
  nb::object found;
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int32_t env_id = env_of(env_ids, row);
    const Slot& slot = queue_.slot(env_id);
    if (slot.kind == shm::kGoodRow && slot.reply_bytes == 0) continue;
    if (!found.is_valid()) found = nb::list();
    nb::borrow<nb::list>(found).append(reply_of(row, env_id));
  }
  return found.is_valid() ? found.release().ptr() : PyTuple_New(0);
}

void PythonPool::set_numbers(const nb::object& batch, const std::int32_t* env_ids, std::int64_t count) const {
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
  batch_class_.set(batch, BatchClass::kReward, reward.release().ptr());
  batch_class_.set(batch, BatchClass::kTerminated, terminated.release().ptr());
  batch_class_.set(batch, BatchClass::kTruncated, truncated.release().ptr());
  batch_class_.set(batch, BatchClass::kElapsedStep, elapsed_step.release().ptr());
  nb::object env_id = all_ids_;
  if (env_ids != nullptr) {
    auto [own, ids] = new_column<std::int32_t>(NPY_INT32, count);
    std::memcpy(ids, env_ids, static_cast<std::size_t>(count) * sizeof(std::int32_t));
    env_id = std::move(own);
  }
  batch_class_.set(batch, BatchClass::kEnvId, env_id.release().ptr());
}

PyObject* PythonPool::final_rows(const std::int32_t* env_ids, std::int64_t count) const {
  const auto has_final = [&](std::int32_t env_id) { return queue_.slot(env_id).has_final != 0; };
  const auto rows_of = [&](const Column& column) { return column.gather_some(env_ids, count, has_final).release().ptr(); };
  const nb::object obs = checked(is_single_ ? rows_of(final_obs_[0]) : tuple_of(final_obs_, rows_of));
  auto [elapsed_step, elapsed_steps] = new_column<std::int32_t>(NPY_INT32, count);
  for (std::int64_t row = 0; row < count; ++row) {
    const Slot& slot = queue_.slot(env_of(env_ids, row));
    elapsed_steps[row] = slot.has_final != 0 ? slot.final_elapsed_step : 0;
  }
  return nb::make_tuple(obs, elapsed_step, checked(unpack_info(env_ids, count, true))).release().ptr();
}

// A dict, empty if no row has a value; a new reference, or null with a Python error set.
PyObject* PythonPool::unpack_info(const std::int32_t* env_ids, std::int64_t count, bool is_final) const {
  struct Row {
    const char* bytes;
    std::uint64_t mask;
  };
  const std::int64_t offset = is_final ? info_.row_bytes() / 2 : 0;
  return schema_.unpack(count, [&](std::int64_t row) {
    const std::int32_t env_id = env_of(env_ids, row);
    const Slot& slot = queue_.slot(env_id);
    return Row{info_.row(env_id) + offset, is_final ? slot.final_mask : slot.info_mask};
  });
}

// -------------------------------------------------------------------- between batches

void PythonPool::seed(nb::handle env_ids, nb::handle words) {
  const PartialCall call(guard_);
  set_checked_ids(env_ids);
  const std::uint32_t* next = read_seeds(words, ids_.count());
  for (const std::int32_t env_id : ids_.list()) {
    Slot& slot = queue_.slot(env_id);
    std::memcpy(slot.seed, next, sizeof(slot.seed));
    slot.has_seed = 1;
    next += 4;
  }
}

void PythonPool::reject_row(std::int32_t env_id) {
  const PartialCall call(guard_);
  Slot& slot = slot_of(env_id);
  slot.phase = EF_BROKEN;
  slot.reply_bytes = 0;
  if (!kept_.empty()) slot.last_copy ^= 1;
  for (const KeptColumn& column : kept_) column.restore(slot, env_id);
  faults_.push_back(reply_of(-1, env_id));
  guard_.set_unreported(true);
}

void PythonPool::finish_rebuild(std::int32_t env_id, std::uint8_t phase) {
  const PartialCall call(guard_);
  Slot& slot = slot_of(env_id);
  // An env that observes into its row has cleared it, and the row may be part of a batch.
  for (const KeptColumn& column : kept_) column.restore(slot, env_id);
  shm::set_phase(slot, phase);
  forget_fault(env_id);
}

void PythonPool::keep_obs(std::int32_t env_id) {
  const PartialCall call(guard_);
  Slot& slot = slot_of(env_id);
  for (const KeptColumn& column : kept_) column.keep(slot, env_id);
  slot.last_copy ^= 1;
}

bool PythonPool::clear_requests(nb::handle env_ids) {
  const PartialCall call(guard_);
  if (!ids_.accept(queue_, env_ids)) return false;
  forget_requests();
  return true;
}

void PythonPool::set_request_bytes(std::int32_t env_id, std::uint64_t count) {
  const PartialCall call(guard_);
  slot_of(env_id).request_bytes = count;
}

void PythonPool::set_phase(std::int32_t env_id, std::uint8_t phase) {
  const PartialCall call(guard_);
  slot_of(env_id).phase = phase;
}

bool PythonPool::has_ordered_batch() {
  const PartialCall call(guard_);
  return !ordered_.empty();
}

std::uint32_t PythonPool::next_schema_version() {
  const PartialCall call(guard_);
  return queue_.header().schema_version.load() + 1;
}

nb::dict PythonPool::get_episode(std::int32_t env_id) {
  const PartialCall call(guard_);
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
  const PartialCall call(guard_);
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
  const PartialCall call(guard_);
  if (!schema_.load(entries.ptr())) throw nb::python_error();
  shm::Header& header = queue_.header();
  const std::uint32_t version = header.schema_version.load(std::memory_order_relaxed) + 1;
  if (version > shm::kMaxSchemas) throw nb::value_error("more schemas than a mask has bits");
  header.schema_bytes[version] = count;
  header.schema_version.store(version, std::memory_order_release);
}

void PythonPool::revive(std::int32_t worker) {
  const PartialCall call(guard_);
  queue_.revive(worker);
}

nb::bytes PythonPool::phases() {
  const PartialCall call(guard_);
  // The slot of an env in flight is its worker's: it counts as running until its row arrives.
  return bytes_of_envs(num_envs_, [&](std::int32_t env_id) -> std::uint8_t {
    return queue_.is_in_flight(env_id) ? static_cast<std::uint8_t>(EF_RUNNING) : queue_.slot(env_id).phase;
  });
}

nb::bytes PythonPool::in_flight() {
  const PartialCall call(guard_);
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
      .def_ro("is_fault", &Reply::is_fault)
      .def_ro("is_lost", &Reply::is_lost)
      .def_ro("was_reset", &Reply::was_reset)
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
                 .read("is_single", options.is_single)
                 .read("batch_type", options.batch_type)
                 .read("run_inline", options.run_inline)
                 .read("on_overdue", options.on_overdue)
                 .finish();
             new (self) PythonPool(options);
           })
      .def("step", &PythonPool::step, nb::arg("actions").none(), nb::arg("env_ids").none(), nb::arg("timeout_s"))
      .def("send", &PythonPool::send, nb::arg("actions").none(), nb::arg("env_ids").none())
      .def("step_stored", &PythonPool::step_stored, nb::arg("env_ids").none(), nb::arg("timeout_s"))
      .def("send_stored", &PythonPool::send_stored, nb::arg("env_ids").none())
      .def("recv", &PythonPool::recv, nb::arg("timeout_s"))
      .def("reset", &PythonPool::reset, nb::arg("env_ids").none(), nb::arg("timeout_s"))
      .def("send_reset", &PythonPool::send_reset, nb::arg("env_ids").none())
      .def("call", &PythonPool::call, nb::arg("env_ids").none())
      .def("observe", &PythonPool::observe)
      .def("elapsed_steps", &PythonPool::elapsed_steps)
      .def("drop_pending", &PythonPool::drop_pending, nb::arg("timeout_s"))
      .def("faults", &PythonPool::faults)
      .def("clear_faults", &PythonPool::clear_faults)
      .def("seed", &PythonPool::seed, nb::arg("env_ids").none(), nb::arg("words"))
      .def("reject_row", &PythonPool::reject_row, nb::arg("env_id"))
      .def("finish_rebuild", &PythonPool::finish_rebuild, nb::arg("env_id"), nb::arg("phase"))
      .def("keep_obs", &PythonPool::keep_obs, nb::arg("env_id"))
      .def("clear_requests", &PythonPool::clear_requests, nb::arg("env_ids").none())
      .def("set_request_bytes", &PythonPool::set_request_bytes, nb::arg("env_id"), nb::arg("count"))
      .def("set_phase", &PythonPool::set_phase, nb::arg("env_id"), nb::arg("phase"))
      .def("get_episode", &PythonPool::get_episode, nb::arg("env_id"))
      .def("set_episode", &PythonPool::set_episode, nb::arg("env_id"), nb::arg("episode"))
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
      .def_prop_ro("has_ordered_batch", &PythonPool::has_ordered_batch)
      .def("env_statistics", &PythonPool::env_statistics)
      .def("worker_statistics", &PythonPool::worker_statistics)
      .def_prop_ro("call_guard", &PythonPool::call_guard, nb::rv_policy::reference_internal)
      .def("interrupt", &PythonPool::interrupt);
}

}  // namespace envfleet::bindings
