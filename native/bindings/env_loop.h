// EnvLoop: the worker's side of a board: takes requests, calls Python envs, writes their rows.
//
// The plain case is done here: an env that returns an array of its space's dtype and shape, numbers and
// flags, and infos that the schema knows. Everything else (nested spaces, seeds, faults, odd types) is
// handed to the `runner`, a Python object (executors/rows/runner.py), which can do all of it.
//
// Thread safety: one thread at a time. Holds the GIL but while it waits.
// Invariant: a request's row is finished whatever the env raised, so that the caller never waits for it in vain.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "info_schema.h"
#include "loop_columns.h"
#include "slot_counts.h"
#include "worker_desk.h"

namespace envfleet::bindings {

class EnvLoop {
 public:
  EnvLoop(nanobind::object buffer, std::int32_t num_envs, std::int32_t num_workers, std::int32_t worker,
          std::int32_t autoreset, std::int32_t max_episode_steps, std::int32_t max_spinners, nanobind::object obs,
          nanobind::object action, nanobind::object info, nanobind::object runner);

  // The callables of one env; None while it is not built.
  void set_env(std::int32_t env_id, nanobind::object env, nanobind::object step, nanobind::object reset);
  // Lets go of the envs and the runner, which holds this in turn.
  void detach();
  // For the garbage collector: a pool that Ctrl-C kept from being made is never detached.
  int traverse(visitproc visit, void* context) const;

  // Works until the board says stop.
  void serve();
  // Works in the caller's thread until nothing is asked for or the clock says deadline_ns (negative: none).
  void run_pending(std::int64_t deadline_ns);

  // --- called by the runner ----------------------------------------------------------------

  // True: the episode ended.
  bool count_step(std::int32_t env_id, double reward, bool terminated, bool truncated) {
    return rows::count_step(desk_.slot(env_id), limit_, reward, terminated, truncated);
  }
  void count_reset(std::int32_t env_id, bool is_same_step) { rows::count_reset(desk_.slot(env_id), is_same_step); }
  void count_fault(std::int32_t env_id, bool in_reset) { rows::count_fault(desk_.slot(env_id), in_reset); }
  void set_phase(std::int32_t env_id, std::uint8_t phase) { rows::set_phase(desk_.slot(env_id), phase); }

  // The request's seed as an int, once; None when there is none.
  nanobind::object take_seed(std::int32_t env_id);
  std::uint64_t request_bytes(std::int32_t env_id) const { return desk_.slot(env_id).request_bytes; }
  void set_reply_bytes(std::int32_t env_id, std::uint64_t count) { desk_.slot(env_id).reply_bytes = count; }
  std::uint64_t schema_bytes(std::uint32_t version) const { return desk_.header().schema_bytes[version]; }
  // Packs what the schema knows of an info; gives the rest as a dict, or None.
  nanobind::object pack_info(std::int32_t env_id, nanobind::dict info, bool is_final);

 private:
  void wait();
  void run_next();
  void load_schema();
  PyObject* run(std::int32_t env_id, rows::Slot& slot);
  PyObject* run_step(std::int32_t env_id, rows::Slot& slot, const nanobind::object& step);
  PyObject* run_reset(std::int32_t env_id, rows::Slot& slot);
  bool finish_plain_step(std::int32_t env_id, rows::Slot& slot, PyObject* result, bool then_reset);
  void refresh(std::int32_t env_id);
  bool write_info(std::int32_t env_id, rows::Slot& slot, PyObject* info);
  PyObject* pack(rows::Slot& slot, std::int32_t env_id, PyObject* info, bool is_final) const;
  PyObject* fault(std::int32_t env_id, const char* method);
  PyObject* give_up_row(std::int32_t env_id, rows::Slot& slot, nanobind::python_error& error);

  nanobind::object buffer_;  // keeps the memory
  rows::WorkerDesk desk_;
  std::int32_t first_env_, end_env_, autoreset_, limit_;
  ObsColumn obs_;
  ActionColumn action_;
  BoardColumn info_;
  nanobind::object runner_;
  std::vector<nanobind::object> env_, step_, reset_;
  std::int64_t clock_ns_ = 0;  // 0: not looked at since the last wait
  bool is_inline_ = false;
  std::uint32_t schema_version_ = 0;
  InfoSchema schema_;
};

}  // namespace envfleet::bindings
