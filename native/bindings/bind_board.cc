// Board as Python sees it, and what Python needs to lay one out.
#include <nanobind/nanobind.h>

#include "bindings.h"
#include "board.h"
#include "board_caller.h"
#include "map_file.h"
#include "memory_file.h"

namespace nb = nanobind;

namespace envfleet::bindings {

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
  nb::class_<MemoryFile>(module, "MemoryFile")
      .def(nb::init<std::int64_t>(), nb::arg("num_bytes"))
      .def("fileno", &MemoryFile::fileno)
      .def("detach", &MemoryFile::detach)
      .def("close", &MemoryFile::close);
  nb::class_<Board>(module, "Board")
      .def(nb::init<nb::object, std::int32_t, std::int32_t, std::int32_t, std::int32_t, bool, double, nb::list, nb::list,
                    nb::object, nb::object, nb::object, nb::object, bool, bool, nb::object, nb::object>(),
           nb::arg("buffer"), nb::arg("num_envs"), nb::arg("num_workers"), nb::arg("batch_size"), nb::arg("autoreset"),
           nb::arg("may_spin"), nb::arg("step_timeout_s"), nb::arg("obs"), nb::arg("finals"), nb::arg("action").none(),
           nb::arg("action_space").none(), nb::arg("info"), nb::arg("whole_ids"), nb::arg("copy"), nb::arg("is_plain"),
           nb::arg("run_inline").none(), nb::arg("on_overdue").none())
      .def("step", &Board::step, nb::arg("executor"), nb::arg("actions").none(), nb::arg("env_ids").none(),
           nb::arg("timeout_s"))
      .def("send", &Board::send, nb::arg("actions").none(), nb::arg("env_ids").none())
      .def("step_stored", &Board::step_stored, nb::arg("executor"), nb::arg("env_ids").none(), nb::arg("timeout_s"))
      .def("send_stored", &Board::send_stored, nb::arg("env_ids").none())
      .def("recv", &Board::recv, nb::arg("executor"), nb::arg("timeout_s"))
      .def("reset", &Board::reset, nb::arg("executor"), nb::arg("env_ids").none(), nb::arg("timeout_s"))
      .def("send_reset", &Board::send_reset, nb::arg("env_ids").none())
      .def("call", &Board::call, nb::arg("env_ids").none())
      .def("observe", &Board::observe)
      .def("abandon", &Board::abandon, nb::arg("timeout_s"))
      .def("finish_abandoned_call", &Board::finish_abandoned_call)
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
      .def_prop_ro("call_guard", &Board::call_guard, nb::rv_policy::reference_internal)
      .def("interrupt", &Board::interrupt);
}

}  // namespace envfleet::bindings
