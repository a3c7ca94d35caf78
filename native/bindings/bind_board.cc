// Board: the caller's side of Python envs on workers, as executors/rows/executor.py uses it.
//
// step, send and recv answer False when the call is not plainly right; nothing has moved then, and
// the Python layer converts or explains it. None stands for a time limit that ran out.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "action_space.h"
#include "bindings.h"
#include "board_batches.h"
#include "caller.h"
#include "checks.h"
#include "cores.h"
#include "desk.h"
#include "envfleet/abi.h"
#include "forks.h"
#include "map_file.h"
#include "numpy_api.h"
#include "row_columns.h"

namespace nb = nanobind;

namespace envfleet::bindings {

namespace {

using rows::Desk;
using rows::Slot;

constexpr std::int64_t kCloseTimeoutNs = 5'000'000'000;

std::int64_t to_ns(double seconds) { return seconds < 0 ? -1 : static_cast<std::int64_t>(std::min(seconds, 1e9) * 1e9); }

class Board {
 public:
  Board(nb::object buffer, std::int32_t num_envs, std::int32_t num_workers, std::int32_t batch_size, std::int32_t autoreset,
        bool may_spin, double step_timeout_s, nb::list obs, nb::list finals, nb::object action, nb::object action_space,
        nb::object info, nb::object whole_ids, bool copy, nb::object run_inline, nb::object on_overdue)
      : buffer_(buffer),
        desk_(reinterpret_cast<std::byte*>(PyArray_BYTES(reinterpret_cast<PyArrayObject*>(buffer.ptr()))),
              rows::Geometry(num_envs, num_workers), may_spin, to_ns(step_timeout_s)),
        num_envs_(num_envs),
        batch_size_(batch_size),
        autoreset_(autoreset),
        batches_(desk_, obs, finals, info, whole_ids, copy, autoreset == EF_SAME_STEP),
        run_inline_(run_inline),
        on_overdue_(on_overdue),
        fork_generation_(engine::fork_generation()),
        stamps_(num_envs, 0) {
    if (!action_space.is_none()) {
      action_.emplace(action);
      action_space_.emplace(nb::cast<nb::dict>(action_space));
      actions_.emplace(action_space_->array, true);
    }
  }

  // --- stepping --------------------------------------------------------------------------

  nb::object step(nb::handle actions, nb::handle env_ids, double timeout_s) {
    Guard guard(*this);
    if (!ordered_.empty() || !set_ids(env_ids) || !may_step() || !accept(actions)) return nb::bool_(false);
    clear_mail();
    begin_ordered(rows::kStep);
    return finish_ordered(to_ns(timeout_s));
  }

  bool send(nb::handle actions, nb::handle env_ids) {
    Guard guard(*this);
    if ((!ordered_.empty() && !is_async()) || !set_ids(env_ids) || !may_step() || !accept(actions)) return false;
    clear_mail();
    begin(rows::kStep);
    return true;
  }

  // For actions that the Python layer has checked and stored.
  nb::object step_stored(nb::handle env_ids, double timeout_s) {
    Guard guard(*this);
    if (!ordered_.empty() || !set_ids(env_ids) || !may_step()) return nb::bool_(false);
    begin_ordered(rows::kStep);
    return finish_ordered(to_ns(timeout_s));
  }

  bool send_stored(nb::handle env_ids) {
    Guard guard(*this);
    if ((!ordered_.empty() && !is_async()) || !set_ids(env_ids) || !may_step()) return false;
    begin(rows::kStep);
    return true;
  }

  nb::object recv(double timeout_s) {
    Guard guard(*this);
    const std::int64_t timeout_ns = to_ns(timeout_s);
    if (!ordered_.empty()) return finish_ordered(timeout_ns);
    if (!is_async() || desk_.num_in_flight() < batch_size_) return nb::bool_(false);
    const auto missing = [&] { return batch_size_ - desk_.num_arrived(); };
    if (!wait_for(missing, timeout_ns)) return nb::none();
    taken_.clear();
    for (std::int32_t row = 0; row < batch_size_; ++row) {
      taken_.push_back(desk_.first_arrived());
      desk_.take(taken_.back());
    }
    return batches_.rows_of(taken_.data(), batch_size_);
  }

  nb::object reset(nb::handle env_ids, double timeout_s) {
    Guard guard(*this);
    set_checked_ids(env_ids);
    begin_ordered(rows::kReset);
    return finish_ordered(to_ns(timeout_s));
  }

  void send_reset(nb::handle env_ids) {
    Guard guard(*this);
    set_checked_ids(env_ids);
    begin(rows::kReset);
  }

  // Runs the calls that lie in the mailboxes of these envs; (row, env_id, kind, reply_bytes) of each.
  nb::object call(nb::handle env_ids) {
    Guard guard(*this);
    set_checked_ids(env_ids);
    const std::vector<std::int32_t> called(ids_.begin(), ids_.end());
    begin_ordered(rows::kCall);
    try {
      wait_for([&] { return num_missing(); }, -1, false);
    } catch (...) {
      // Interrupted: nobody will ask for the answers.
      is_call_abandoned_ = true;
      throw;
    }
    take_ordered();
    nb::list answers;
    for (std::size_t row = 0; row < called.size(); ++row) {
      const Slot& slot = desk_.slot(called[row]);
      answers.append(nb::make_tuple(row, called[row], slot.kind, slot.reply_bytes));
    }
    return answers;
  }

  nb::object observe() {
    Guard guard(*this);
    return batches_.observations();
  }

  bool abandon(double timeout_s) {
    Guard guard(*this);
    const auto missing = [&] { return desk_.num_in_flight() - desk_.num_arrived(); };
    if (!wait_for(missing, to_ns(timeout_s))) return false;
    drop_all();
    return true;
  }

  // --- between batches ---------------------------------------------------------------------

  void seed(nb::handle env_ids, nb::handle words) {
    Guard guard(*this);
    set_checked_ids(env_ids);
    PyArrayObject* array = as_plain_array(words.ptr());
    if (array == nullptr || PyArray_TYPE(array) != NPY_UINT32 || PyArray_SIZE(array) != 4 * std::ssize(ids_)) {
      throw nb::value_error("seeds must be a contiguous uint32 array of shape (rows, 4)");
    }
    const auto* data = static_cast<const std::uint32_t*>(PyArray_DATA(array));
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      Slot& slot = desk_.slot(ids_[i]);
      std::memcpy(slot.seed, data + 4 * i, sizeof(slot.seed));
      slot.has_seed = 1;
    }
  }

  void set_request_bytes(std::int32_t env_id, std::uint64_t count) { slot_of(env_id).request_bytes = count; }
  void set_phase(std::int32_t env_id, std::uint8_t phase) { slot_of(env_id).phase = phase; }
  // What a slot holds of an env between calls: phase, elapsed_step, pending seed, return so far.
  nb::tuple get_standing(std::int32_t env_id) {
    const Slot& slot = slot_of(env_id);
    return nb::make_tuple(slot.phase, slot.elapsed_step, slot.has_seed, slot.seed[0], slot.seed[1], slot.seed[2],
                          slot.seed[3], slot.statistics.return_now);
  }
  void set_standing(std::int32_t env_id, std::uint8_t phase, std::int32_t elapsed_step, std::uint32_t has_seed,
                    std::uint32_t seed_0, std::uint32_t seed_1, std::uint32_t seed_2, std::uint32_t seed_3,
                    double return_now) {
    Slot& slot = slot_of(env_id);
    slot.phase = phase;
    slot.elapsed_step = elapsed_step;
    slot.has_seed = has_seed;
    const std::uint32_t seed[] = {seed_0, seed_1, seed_2, seed_3};
    std::memcpy(slot.seed, seed, sizeof(seed));
    slot.statistics.return_now = return_now;
  }
  bool was_reset(std::int32_t env_id) { return slot_of(env_id).op == rows::kReset; }
  std::uint32_t next_schema_version() const { return desk_.geometry().header(desk_.base()).schema_version.load() + 1; }
  void publish_schema(nb::list entries, std::uint64_t count) {
    batches_.load_schema(entries);
    rows::Header& header = desk_.geometry().header(desk_.base());
    const std::uint32_t version = header.schema_version.load(std::memory_order_relaxed) + 1;
    if (version > rows::kMaxSchemas) throw nb::value_error("more schemas than a mask has bits");
    header.schema_bytes[version] = count;
    header.schema_version.store(version, std::memory_order_release);
  }

  void mark_dead(std::int32_t worker) { desk_.mark_dead(worker); }
  void revive(std::int32_t worker) {
    Guard guard(*this);
    desk_.revive(worker);
  }
  bool is_dead(std::int32_t worker) const { return desk_.is_dead(worker); }
  std::int32_t worker_of(std::int32_t env_id) const { return desk_.geometry().worker_of(env_id); }
  std::int32_t current_env(std::int32_t worker) const {
    return desk_.geometry().worker(desk_.base(), worker).current_env.load();
  }

  // --- what is known -------------------------------------------------------------------------

  nb::bytes phases() {
    Guard guard(*this);
    std::vector<std::uint8_t> all(num_envs_);
    for (std::int32_t env_id = 0; env_id < num_envs_; ++env_id) all[env_id] = desk_.slot(env_id).phase;
    return nb::bytes(all.data(), all.size());
  }
  nb::bytes in_flight() {
    Guard guard(*this);
    std::vector<std::uint8_t> all(num_envs_);
    for (std::int32_t env_id = 0; env_id < num_envs_; ++env_id) all[env_id] = desk_.is_in_flight(env_id) ? 1 : 0;
    return nb::bytes(all.data(), all.size());
  }
  std::int64_t num_in_flight() const { return desk_.num_in_flight(); }
  bool has_late_batch() const { return !ordered_.empty(); }

  // One tuple an env, in the order of rows::Statistics.
  nb::list env_statistics() const {
    nb::list all;
    for (std::int32_t env_id = 0; env_id < num_envs_; ++env_id) {
      const rows::Statistics& own = desk_.slot(env_id).statistics;
      all.append(nb::make_tuple(own.num_steps, own.num_resets, own.num_episodes, own.return_sum, own.return_min,
                                own.return_max, own.length_sum, own.length_min, own.length_max, own.busy_ns,
                                own.slowest_ns));
    }
    return all;
  }
  // (busy_ns, wait_ns) of each worker.
  nb::list worker_statistics() const {
    nb::list all;
    for (std::int32_t worker = 0; worker < desk_.geometry().num_workers; ++worker) {
      const rows::WorkerWords& words = desk_.geometry().worker(desk_.base(), worker);
      all.append(nb::make_tuple(words.busy_ns, words.wait_ns));
    }
    return all;
  }

  // --- life ----------------------------------------------------------------------------------

  bool is_forked() const { return engine::fork_generation() != fork_generation_; }

  // Tells the workers to leave. From here on every call raises. False: another thread is inside a call and
  // did not come out in time.
  bool stop() {
    if (is_forked() || is_closed_) return true;
    nb::gil_scoped_release released;
    // A call of another thread may come to its end, if that is near.
    const bool is_mine = enter_within(kCloseTimeoutNs);
    is_stopping_.store(true);
    is_closed_ = true;
    desk_.stop();
    if (is_mine) {
      is_busy_.store(false);
      return true;
    }
    // It is told, and raises.
    desk_.ring();
    return false;
  }

 private:
  // Held while a call is inside. Throws when the call has no business there.
  class Guard {
   public:
    explicit Guard(Board& board) : board_(board) {
      if (board.is_forked()) [[unlikely]] {
        raise_error("ForkedPoolError",
                    "this pool was made before fork() and its workers belong to the parent; "
                    "expected it to be used there, got a call in the child: make a new pool in the child");
      }
      if (board.is_busy_.exchange(true, std::memory_order_acquire)) [[unlikely]] {
        raise_error("CallOrderError",
                    "two threads called this pool at once; expected one caller at a time: use a lock or a pool a thread");
      }
      if (board.is_closed_ || board.is_stopping_.load()) [[unlikely]] {
        board.is_busy_.store(false);
        raise_error("PoolClosedError", "this pool is closed; make a new one");
      }
      if (board.is_call_abandoned_) [[unlikely]] {
        try {
          board.finish_abandoned_call();
        } catch (...) {
          board.is_busy_.store(false, std::memory_order_release);
          throw;
        }
      }
    }
    ~Guard() { board_.is_busy_.store(false, std::memory_order_release); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    Board& board_;
  };

  bool enter_within(std::int64_t timeout_ns) {
    const std::int64_t deadline = engine::now_ns() + timeout_ns;
    while (is_busy_.exchange(true)) {
      if (engine::now_ns() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  bool is_async() const { return batch_size_ < num_envs_; }
  Slot& slot_of(std::int32_t env_id) {
    if (env_id < 0 || env_id >= num_envs_) throw nb::index_error("no env of this id");
    return desk_.slot(env_id);
  }

  // ids_ and is_whole_ become those of this call. False: not plainly right.
  bool set_ids(nb::handle given) {
    if (given.is_none()) {
      if (desk_.num_in_flight() != 0) return false;
      is_whole_ = true;
      if (!has_all_ids_) {
        ids_.resize(num_envs_);
        for (std::int32_t env_id = 0; env_id < num_envs_; ++env_id) ids_[env_id] = env_id;
        has_all_ids_ = true;
      }
      return true;
    }
    PyArrayObject* array = as_plain_array(given.ptr());
    if (array == nullptr || PyArray_NDIM(array) != 1 || PyArray_TYPE(array) != NPY_INT32) return false;
    const auto* data = static_cast<const std::int32_t*>(PyArray_DATA(array));
    const std::int64_t count = PyArray_DIM(array, 0);
    if (count == 0) return false;
    if (++stamp_ == 0) {  // wrapped: old stamps would look new
      std::fill(stamps_.begin(), stamps_.end(), 0);
      stamp_ = 1;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t id = data[i];
      if (id < 0 || id >= num_envs_ || stamps_[id] == stamp_ || desk_.is_in_flight(id)) return false;
      stamps_[id] = stamp_;
    }
    ids_.assign(data, data + count);
    has_all_ids_ = is_whole_ = false;
    return true;
  }

  void set_checked_ids(nb::handle given) {
    if (!set_ids(given)) throw nb::value_error("env_ids must be idle, distinct and in range, as int32");
  }

  bool may_step() const {
    for (const std::int32_t env_id : ids_) {
      const std::uint8_t phase = desk_.slot(env_id).phase;
      if (phase != EF_RUNNING && (phase != EF_ENDED || autoreset_ == EF_DISABLED)) return false;
    }
    return true;
  }

  bool accept(nb::handle given) {
    if (!actions_) return false;
    const ef_array& space = action_space_->array;
    PyArrayObject* array = as_plain_array(given.ptr());
    if (array == nullptr || PyArray_NDIM(array) != 1 + space.ndim || PyArray_DIM(array, 0) != std::ssize(ids_)) return false;
    for (int axis = 0; axis < space.ndim; ++axis) {
      if (PyArray_DIM(array, axis + 1) != space.shape[axis]) return false;
    }
    const std::int32_t dtype = dtype_of_array(array);
    if (dtype < 0 || !actions_->takes(dtype)) return false;
    return actions_->store({action_->row(0), action_->row_bytes()}, PyArray_DATA(array), dtype,
                           is_whole_ ? nullptr : ids_.data(), std::ssize(ids_));
  }

  void post(rows::Op op) {
    for (const std::int32_t env_id : ids_) desk_.slot(env_id).op = op;
    desk_.post(ids_.data(), std::ssize(ids_));
  }

  // What lies there is of an earlier request.
  void clear_mail() {
    for (const std::int32_t env_id : ids_) desk_.slot(env_id).request_bytes = 0;
  }

  void begin(rows::Op op) {
    if (!is_async()) return begin_ordered(op);
    post(op);
  }

  void begin_ordered(rows::Op op) {
    ordered_ = ids_;
    is_ordered_whole_ = is_whole_;
    post(op);
  }

  std::int64_t num_missing() const {
    std::int64_t missing = 0;
    for (const std::int32_t env_id : ordered_) missing += desk_.has_arrived(env_id) ? 0 : 1;
    return missing;
  }

  void take_ordered() {
    for (const std::int32_t env_id : ordered_) desk_.take(env_id);
    ordered_.clear();
  }

  nb::object finish_ordered(std::int64_t timeout_ns) {
    if (!wait_for([&] { return num_missing(); }, timeout_ns)) return nb::none();
    taken_ = ordered_;
    take_ordered();
    return batches_.rows_of(is_ordered_whole_ ? nullptr : taken_.data(), std::ssize(taken_));
  }

  void drop_all() {
    for (std::int32_t env_id = 0; env_id < num_envs_; ++env_id) {
      if (desk_.is_in_flight(env_id)) desk_.take(env_id);
    }
    ordered_.clear();
  }

  void finish_abandoned_call() {
    // Watched: whoever asked has gone, and a worker that never answers must not hold up the rest.
    wait_for([&] { return num_missing(); }, -1, true);
    take_ordered();
    is_call_abandoned_ = false;
  }

  void end_overdue() {
    for (const std::int32_t worker : desk_.overdue()) on_overdue_(worker);
  }

  // Until missing() is not positive. False: timeout_ns (negative: none) is over. is_watched: workers that take
  // longer than step_timeout are given up; a constructor or a picture may take its time.
  template <class Missing>
  bool wait_for(Missing&& missing, std::int64_t timeout_ns, bool is_watched = true) {
    const std::int64_t deadline = timeout_ns < 0 ? -1 : engine::now_ns() + timeout_ns;
    // Asked for also when there is nothing to wait for: a caller who is slower than most envs would never find out.
    if (is_watched) end_overdue();
    desk_.collect();
    while (missing() > 0) {
      if (!run_inline_.is_none()) {
        run_inline_(deadline);
        desk_.collect();
        if (missing() > 0) return false;
        break;
      }
      const std::int64_t rest = deadline < 0 ? -1 : deadline - engine::now_ns();
      if (deadline >= 0 && rest <= 0) return false;
      {
        const std::int64_t wanted = missing();
        nb::gil_scoped_release released;
        desk_.wait(wanted, rest, is_watched);
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (is_stopping_.load()) raise_error("PoolClosedError", "this pool was closed while a call waited; make a new one");
      if (is_watched) end_overdue();
      desk_.collect();
    }
    return true;
  }

  nb::object buffer_;
  Desk desk_;
  std::int32_t num_envs_, batch_size_, autoreset_;
  std::optional<RowColumn> action_;
  std::optional<ActionSpace> action_space_;
  std::optional<engine::ActionStore> actions_;
  BoardBatches batches_;
  nb::object run_inline_, on_overdue_;
  std::int64_t fork_generation_;
  std::vector<std::int32_t> ids_, ordered_, taken_;
  bool is_whole_ = false, has_all_ids_ = false, is_ordered_whole_ = false, is_call_abandoned_ = false;
  std::vector<std::uint32_t> stamps_;
  std::uint32_t stamp_ = 0;
  std::atomic<bool> is_busy_{false}, is_stopping_{false};
  bool is_closed_ = false;
};

}  // namespace

void bind_board(nb::module_& module) {
  module.def(
      "board_bytes",
      [](std::int32_t num_envs, std::int32_t num_workers) { return rows::Geometry(num_envs, num_workers).bytes(); },
      nb::arg("num_envs"), nb::arg("num_workers"));
  module.def(
      "first_env_of",
      [](std::int32_t num_envs, std::int32_t num_workers, std::int32_t worker) {
        return worker < num_workers ? rows::Geometry(num_envs, num_workers).first_env(worker) : num_envs;
      },
      nb::arg("num_envs"), nb::arg("num_workers"), nb::arg("worker"));
  module.def("map_file", &map_file, nb::arg("fd"), nb::arg("num_bytes"));
  nb::class_<Board>(module, "Board")
      .def(nb::init<nb::object, std::int32_t, std::int32_t, std::int32_t, std::int32_t, bool, double, nb::list, nb::list,
                    nb::object, nb::object, nb::object, nb::object, bool, nb::object, nb::object>(),
           nb::arg("buffer"), nb::arg("num_envs"), nb::arg("num_workers"), nb::arg("batch_size"), nb::arg("autoreset"),
           nb::arg("may_spin"), nb::arg("step_timeout_s"), nb::arg("obs"), nb::arg("finals"), nb::arg("action").none(),
           nb::arg("action_space").none(), nb::arg("info"), nb::arg("whole_ids"), nb::arg("copy"),
           nb::arg("run_inline").none(), nb::arg("on_overdue").none())
      .def("step", &Board::step, nb::arg("actions").none(), nb::arg("env_ids").none(), nb::arg("timeout_s"))
      .def("send", &Board::send, nb::arg("actions").none(), nb::arg("env_ids").none())
      .def("step_stored", &Board::step_stored, nb::arg("env_ids").none(), nb::arg("timeout_s"))
      .def("send_stored", &Board::send_stored, nb::arg("env_ids").none())
      .def("recv", &Board::recv, nb::arg("timeout_s"))
      .def("reset", &Board::reset, nb::arg("env_ids").none(), nb::arg("timeout_s"))
      .def("send_reset", &Board::send_reset, nb::arg("env_ids").none())
      .def("call", &Board::call, nb::arg("env_ids").none())
      .def("observe", &Board::observe)
      .def("abandon", &Board::abandon, nb::arg("timeout_s"))
      .def("seed", &Board::seed, nb::arg("env_ids").none(), nb::arg("words"))
      .def("set_request_bytes", &Board::set_request_bytes, nb::arg("env_id"), nb::arg("count"))
      .def("set_phase", &Board::set_phase, nb::arg("env_id"), nb::arg("phase"))
      .def("get_standing", &Board::get_standing)
      .def("set_standing", &Board::set_standing)
      .def("was_reset", &Board::was_reset, nb::arg("env_id"))
      .def_prop_ro("next_schema_version", &Board::next_schema_version)
      .def("publish_schema", &Board::publish_schema, nb::arg("entries"), nb::arg("count"))
      .def("mark_dead", &Board::mark_dead, nb::arg("worker"))
      .def("revive", &Board::revive, nb::arg("worker"))
      .def("is_dead", &Board::is_dead, nb::arg("worker"))
      .def("worker_of", &Board::worker_of, nb::arg("env_id"))
      .def("current_env", &Board::current_env, nb::arg("worker"))
      .def("phases", &Board::phases)
      .def("in_flight", &Board::in_flight)
      .def_prop_ro("num_in_flight", &Board::num_in_flight)
      .def_prop_ro("has_late_batch", &Board::has_late_batch)
      .def("env_statistics", &Board::env_statistics)
      .def("worker_statistics", &Board::worker_statistics)
      .def_prop_ro("is_forked", &Board::is_forked)
      .def("stop", &Board::stop);
}

}  // namespace envfleet::bindings
