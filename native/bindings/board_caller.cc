// The calls of a Board that envs run for, and waiting for them. In one file, so that a step is inlined as a whole.
#include "board_caller.h"

#include <iterator>

#include "caller.h"
#include "envfleet/abi.h"
#include "numpy_api.h"
#include "python_calls.h"
#include "timeouts.h"
#include "wait.h"

namespace nb = nanobind;

namespace envfleet::bindings {

using rows::Slot;

Board::Board(nb::object buffer, std::int32_t num_envs, std::int32_t num_workers, std::int32_t batch_size,
             std::int32_t autoreset, bool may_spin, double step_timeout_s, nb::list obs, nb::list finals, nb::object action,
             nb::object action_space, nb::object info, nb::object whole_ids, bool copy, bool is_plain, nb::object run_inline,
             nb::object on_overdue)
    : buffer_(buffer),
      desk_(reinterpret_cast<std::byte*>(PyArray_BYTES(reinterpret_cast<PyArrayObject*>(buffer.ptr()))),
            rows::Geometry(num_envs, num_workers), may_spin, to_ns(step_timeout_s)),
      num_envs_(num_envs),
      batch_size_(batch_size),
      autoreset_(autoreset),
      actions_(action, action_space),
      batches_(desk_, obs, finals, info, whole_ids, copy, autoreset == EF_SAME_STEP),
      is_plain_(is_plain),
      run_inline_(run_inline),
      on_overdue_(on_overdue),
      ids_(num_envs) {}

// Until missing() is not positive. False: timeout_ns (negative: none) is over. is_watched: workers that take
// longer than step_timeout are given up; a constructor or a picture may take its time.
template <class Missing>
bool Board::wait_for(Missing&& missing, std::int64_t timeout_ns, bool is_watched) {
  const std::int64_t deadline = timeout_ns < 0 ? -1 : engine::now_ns() + timeout_ns;
  // Asked for also when there is nothing to wait for: a caller who is slower than most envs would never find out.
  if (is_watched) end_overdue();
  desk_.collect();
  while (missing() > 0) {
    if (!run_inline_.is_none()) {
      python([&] { run_inline_(deadline); });
      desk_.collect();
      if (missing() <= 0) break;
      if (guard_.is_interrupted()) raise_closed_while_waiting();
      return false;
    }
    const std::int64_t rest = deadline < 0 ? -1 : deadline - engine::now_ns();
    if (deadline >= 0 && rest <= 0) return false;
    {
      const std::int64_t wanted = missing();
      GilRelease released;
      desk_.wait(wanted, rest, is_watched);
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (guard_.is_interrupted()) raise_closed_while_waiting();
    if (is_watched) end_overdue();
    desk_.collect();
  }
  return true;
}

void Board::end_overdue() {
  const std::vector<std::int32_t> late = desk_.overdue();
  for (std::size_t i = 0; i < late.size(); ++i) {
    try {
      python([&] { on_overdue_(late[i]); });
    } catch (...) {
      // Ctrl-C came before it was ended: named once more at the next look, or it would be waited for for ever.
      for (; i < late.size(); ++i) desk_.name_again(late[i]);
      throw;
    }
  }
}

bool Board::may_step() const {
  for (const std::int32_t env_id : ids_.list()) {
    const std::uint8_t phase = desk_.slot(env_id).phase;
    if (phase != EF_RUNNING && (phase != EF_ENDED || autoreset_ == EF_DISABLED)) return false;
  }
  return true;
}

bool Board::accept(nb::handle actions) {
  return actions_.accept(actions, ids_.is_whole() ? nullptr : ids_.list().data(), ids_.count());
}

// What lies there is of an earlier request.
void Board::clear_mail() {
  for (const std::int32_t env_id : ids_.list()) desk_.slot(env_id).request_bytes = 0;
}

void Board::post(rows::Op op) {
  for (const std::int32_t env_id : ids_.list()) desk_.slot(env_id).op = op;
  desk_.post(ids_.list().data(), ids_.count());
}

void Board::begin(rows::Op op) {
  if (!is_async()) return begin_ordered(op);
  post(op);
  count_in_flight(ids_.count());
}

void Board::begin_ordered(rows::Op op) {
  ordered_ = ids_.list();
  is_ordered_whole_ = ids_.is_whole();
  post(op);
  if (op != rows::kCall) count_in_flight(ids_.count());
}

std::int64_t Board::num_missing() const {
  std::int64_t missing = 0;
  for (const std::int32_t env_id : ordered_) missing += desk_.has_arrived(env_id) ? 0 : 1;
  return missing;
}

void Board::take_ordered() {
  for (const std::int32_t env_id : ordered_) desk_.take(env_id);
  ordered_.clear();
}

nb::object Board::finish_ordered(nb::handle executor, std::int64_t timeout_ns) {
  if (!wait_for([&] { return num_missing(); }, timeout_ns)) return nb::none();
  taken_ = ordered_;
  take_ordered();
  return give_out(executor, is_ordered_whole_ ? nullptr : taken_.data(), std::ssize(taken_));
}

// Rows that were taken. env_ids null: all.
nb::object Board::give_out(nb::handle executor, const std::int32_t* env_ids, std::int64_t count) {
  count_in_flight(-count);
  nb::object columns = batches_.rows_of(env_ids, count);
  const bool has_mail = PyTuple_GET_ITEM(columns.ptr(), PyTuple_GET_SIZE(columns.ptr()) - 1) != Py_None;
  if (is_plain_ && !has_mail) return columns;
  // It asks this board about its rows.
  struct Open {
    explicit Open(engine::CallGuard& guard) : guard(guard) { guard.set_in_call(false); }
    ~Open() { guard.set_in_call(true); }
    engine::CallGuard& guard;
  } open(guard_);
  return executor.attr("make_batch")(columns);
}

nb::object Board::step(nb::handle executor, nb::handle actions, nb::handle env_ids, double timeout_s) {
  const Whole call(*this);
  if (!ordered_.empty() || !ids_.accept(desk_, env_ids) || !may_step() || !accept(actions)) return nb::bool_(false);
  clear_mail();
  begin_ordered(rows::kStep);
  return finish_ordered(executor, to_ns(timeout_s));
}

bool Board::send(nb::handle actions, nb::handle env_ids) {
  const Whole call(*this);
  if (!ordered_.empty() && !is_async()) return false;
  if (!ids_.accept(desk_, env_ids) || !may_step() || !accept(actions)) return false;
  clear_mail();
  begin(rows::kStep);
  return true;
}

nb::object Board::step_stored(nb::handle executor, nb::handle env_ids, double timeout_s) {
  const Part part(*this);
  if (!ordered_.empty() || !ids_.accept(desk_, env_ids) || !may_step()) return nb::bool_(false);
  begin_ordered(rows::kStep);
  return finish_ordered(executor, to_ns(timeout_s));
}

bool Board::send_stored(nb::handle env_ids) {
  const Part part(*this);
  if ((!ordered_.empty() && !is_async()) || !ids_.accept(desk_, env_ids) || !may_step()) return false;
  begin(rows::kStep);
  return true;
}

nb::object Board::recv(nb::handle executor, double timeout_s) {
  const Whole call(*this);
  const std::int64_t timeout_ns = to_ns(timeout_s);
  if (!ordered_.empty()) return finish_ordered(executor, timeout_ns);
  if (!is_async() || desk_.num_in_flight() < batch_size_) return nb::bool_(false);
  const auto missing = [&] { return batch_size_ - desk_.num_arrived(); };
  if (!wait_for(missing, timeout_ns)) return nb::none();
  taken_.clear();
  for (std::int32_t row = 0; row < batch_size_; ++row) {
    taken_.push_back(desk_.first_arrived());
    desk_.take(taken_.back());
  }
  return give_out(executor, taken_.data(), batch_size_);
}

nb::object Board::reset(nb::handle executor, nb::handle env_ids, double timeout_s) {
  const Part part(*this);
  set_checked_ids(env_ids);
  begin_ordered(rows::kReset);
  return finish_ordered(executor, to_ns(timeout_s));
}

void Board::send_reset(nb::handle env_ids) {
  const Part part(*this);
  set_checked_ids(env_ids);
  begin(rows::kReset);
}

nb::object Board::call(nb::handle env_ids) {
  const Part part(*this);
  set_checked_ids(env_ids);
  const std::vector<std::int32_t> called = ids_.list();
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

void Board::drop_abandoned_call() {
  // Watched: whoever asked has gone, and a worker that never answers must not hold up the rest.
  wait_for([&] { return num_missing(); }, -1, true);
  take_ordered();
  is_call_abandoned_ = false;
}

nb::object Board::observe() {
  const Part part(*this);
  return batches_.observations();
}

bool Board::abandon(double timeout_s) {
  const Part part(*this);
  const auto missing = [&] { return desk_.num_in_flight() - desk_.num_arrived(); };
  if (!wait_for(missing, to_ns(timeout_s))) return false;
  for (std::int32_t env_id = 0; env_id < num_envs_; ++env_id) {
    if (desk_.is_in_flight(env_id)) desk_.take(env_id);
  }
  ordered_.clear();
  num_in_flight_.store(0, std::memory_order_relaxed);
  return true;
}

}  // namespace envfleet::bindings
