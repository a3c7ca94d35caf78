// EnvLoop as Python sees it.
#include <nanobind/nanobind.h>

#include "bindings.h"
#include "env_loop.h"

namespace nb = nanobind;

namespace envfleet::bindings {

namespace {

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<EnvLoop>(self)->traverse(visit, arg) : 0;
}

int clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<EnvLoop>(self)->detach();
  return 0;
}

PyType_Slot slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {Py_tp_clear, reinterpret_cast<void*>(clear)}, {0, nullptr}};

}  // namespace

void bind_env_loop(nb::module_& module) {
  nb::class_<EnvLoop>(module, "EnvLoop", nb::type_slots(slots))
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
