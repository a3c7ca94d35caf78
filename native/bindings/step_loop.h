// StepLoop: the worker's side of Python envs: takes requests, calls the envs, writes their rows.
//
// The plain case is handled here: an env that returns an array with the dtype and shape of its space, or dicts and tuples of
// such arrays and texts, numbers and flags, and infos that the schema knows. For everything else (unusual types, objects,
// messages, exceptions) the loop asks the `runner`, a Python object (executors/python/runner.py), and gets a result back:
// the parts of what an env returned, a message for the caller, how many bytes a message has. The runner does not call the
// loop.
//
// Thread safety: one thread at a time. Holds the GIL except while it waits.
// Invariant: the row of a request is finished whatever the env raises, so that the caller never waits for it in vain.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/info_schema.h"
#include "bindings/kept_column.h"
#include "bindings/numpy_arrays.h"
#include "shm/slot_updates.h"
#include "shm/worker_queue.h"

namespace envfleet::bindings {

// Observations, or a part of them, that are one array or one text.
struct ObsColumn : Column {
  // holds_text: rows of uint32, the length of the text and its code points.
  ObsColumn(nanobind::handle array, bool holds_text, bool check_finite);

  // Returns false if the value does not plainly have the space's dtype and shape, or is not finite and must be; the row is
  // undefined then.
  bool write(std::int32_t env_id, PyObject* value) const;

  bool is_text;

 private:
  bool write_text(std::int32_t env_id, PyObject* value) const;

  // With check_finite: whether numbers of this dtype are finite. Null: every value is accepted.
  bool (*are_finite_)(const void* numbers, std::int64_t count) = nullptr;
  std::int64_t num_elements_ = 0;
};

// Observations as their space nests them. Empty for spaces with values of no fixed size.
class ObsColumns {
 public:
  // None, or the structure of the space: a dict, a tuple, or for a leaf the list [array, is_text].
  ObsColumns(nanobind::handle given, bool check_finite);
  explicit operator bool() const { return kind_ != Kind::none; }

  // As in ObsColumn.
  bool write(std::int32_t env_id, PyObject* obs) const;

 private:
  enum class Kind { none, leaf, dict, tuple };

  Kind kind_ = Kind::none;
  std::optional<ObsColumn> column_;     // of a leaf
  std::vector<nanobind::object> keys_;  // of a dict, one per part
  std::vector<ObsColumns> parts_;       // of a dict or tuple
};

// Actions that are one array, as the objects that envs receive.
struct ActionColumn : Column {
  using Column::Column;

  // A numpy scalar for shape (), otherwise a new array: the env may keep it. Invalid with a Python error set on failure.
  nanobind::object make(std::int32_t env_id);

 private:
  std::vector<nanobind::object> cached_scalars_;  // by value
};

struct StepLoopOptions {
  nanobind::object buffer;  // the memory that the caller and the workers share, as a uint8 array
  std::int32_t num_envs = 0, num_workers = 0;
  std::int32_t worker = 0;
  std::int32_t autoreset = 0;          // ef_autoreset
  std::int32_t max_episode_steps = 0;  // 0: no limit
  std::int32_t num_cores = 0;          // see WorkerQueue
  bool check_finite = false;           // rewards and observations that are NaN or infinite are left to the runner
  nanobind::object obs;                // see ObsColumns
  nanobind::object action;             // the column, if actions are one array; otherwise None
  nanobind::object info;               // the array of the info columns
  nanobind::list kept;                 // see KeptColumn; empty for pools that do not restart envs
  nanobind::list envs;                 // this worker's envs; None: not built. The runner may replace them in call()
  nanobind::object runner;
};

// Ends this process if it is a child that an env has forked since this fork_generation(), and that has returned from the
// env's call: two processes would serve the requests of one worker. To be called after every call of an env, before what it
// returned is used.
void exit_if_forked(std::int64_t generation);

class StepLoop {
 public:
  explicit StepLoop(const StepLoopOptions& options);

  // Drops the references to the envs and to the runner.
  void detach();

  // Serves requests until the pool is stopped.
  void serve();
  // Serves requests in the caller's thread until there are none left or deadline_ns (negative: none) has passed.
  void run_pending(std::int64_t deadline_ns);

  // An env waits for input at a debugger's prompt: until its call ends it has no time limit, however many prompts open. The
  // runner's end_prompt() is called when it has ended, and after the calls that were requested by then. Returns the env's
  // id.
  std::int32_t begin_prompt();

 private:
  void wait();
  void run_next();
  void end_prompt();
  void load_schema();
  void run(std::int32_t env_id, shm::Slot& slot);
  void run_step(std::int32_t env_id, shm::Slot& slot, const nanobind::object& step);
  void run_reset(std::int32_t env_id, shm::Slot& slot);
  void run_call(std::int32_t env_id, shm::Slot& slot);
  nanobind::object returned(PyObject* result) const;
  bool finish_plain_step(std::int32_t env_id, shm::Slot& slot, PyObject* result);
  bool finish_plain_reset(std::int32_t env_id, shm::Slot& slot, PyObject* result);
  void finish_step(std::int32_t env_id, shm::Slot& slot, const nanobind::object& result);
  void finish_reset(std::int32_t env_id, shm::Slot& slot, const nanobind::object& result, nanobind::object message,
                    bool is_same_step);
  nanobind::object fail_row(std::int32_t env_id, shm::Slot& slot, nanobind::python_error& error);
  void refresh(std::int32_t env_id);
  nanobind::object take_seed(shm::Slot& slot) const;
  bool write_info(std::int32_t env_id, shm::Slot& slot, PyObject* info);
  nanobind::object pack(shm::Slot& slot, std::int32_t env_id, PyObject* info, bool is_final) const;
  nanobind::object write_row(std::int32_t env_id, shm::Slot& slot, PyObject* leaves, PyObject* info, bool is_final,
                             const nanobind::object& message);
  void send(std::int32_t env_id, shm::Slot& slot, const nanobind::object& message);
  // Calls a method of the runner. Throws what it raises.
  template <class... Arguments>
  nanobind::object ask(const char* method, const Arguments&... arguments) const;

  nanobind::object buffer_;  // keeps the memory alive
  shm::WorkerQueue queue_;
  std::int32_t first_env_, end_env_, autoreset_, max_episode_steps_;
  bool check_finite_;
  ObsColumns obs_;
  ActionColumn action_;
  Column info_;
  std::vector<KeptColumn> kept_;
  nanobind::object runner_;
  nanobind::list envs_;
  std::vector<nanobind::object> step_, reset_;  // methods of the envs; invalid: not built
  const std::int64_t fork_generation_;          // when the loop was made
  const char* method_ = "";                     // of the env, that the current request runs
  std::int64_t clock_ns_ = 0;                   // 0: not read since the last wait
  bool is_inline_ = false;
  bool has_prompt_ = false;
  std::uint32_t schema_version_ = 0;
  InfoSchema schema_;
};

}  // namespace envfleet::bindings
