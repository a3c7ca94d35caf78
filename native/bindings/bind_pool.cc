// NativePool's methods by their names in Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "engine.h"
#include "native_pool.h"
#include "python_calls.h"

namespace nb = nanobind;

namespace envfleet::bindings {

void bind_pool(nb::module_& module) {
  // Not nb::exception: its translator raises UnicodeDecodeError instead when the text is not UTF-8.
  PyObject* fleet_error = PyErr_NewException("envfleet._native.FleetError", PyExc_Exception, nullptr);
  if (fleet_error == nullptr) throw nb::python_error();
  module.attr("FleetError") = nb::borrow(fleet_error);
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void* type) {
        try {
          std::rethrow_exception(thrown);
        } catch (const engine::FleetError& error) {
          set_error(static_cast<PyObject*>(type), error.what());
        }
      },
      fleet_error);
  nb::class_<NativePool>(module, "NativePool")
      .def(nb::init<const std::string&, std::int32_t, std::int32_t, std::int32_t, std::int32_t, std::int32_t, std::int32_t,
                    nb::list, nb::object>(),
           nb::arg("env_id"), nb::arg("num_envs"), nb::arg("batch_size"), nb::arg("num_threads"),
           nb::arg("thread_affinity_offset"), nb::arg("max_episode_steps"), nb::arg("autoreset"), nb::arg("configs"),
           nb::arg("whole_ids"))
      .def("step", &NativePool::step, nb::arg("actions").none(), nb::arg("env_ids").none(), nb::arg("timeout_s"))
      .def("send", &NativePool::send, nb::arg("actions").none(), nb::arg("env_ids").none())
      .def("step_checked", &NativePool::step_checked, nb::arg("actions").none(), nb::arg("env_ids").none(),
           nb::arg("timeout_s"))
      .def("send_checked", &NativePool::send_checked, nb::arg("actions").none(), nb::arg("env_ids").none())
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
      .def_prop_ro("call_guard", &NativePool::call_guard, nb::rv_policy::reference_internal)
      .def("end", &NativePool::end);
}

}  // namespace envfleet::bindings
