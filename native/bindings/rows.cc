#include "bindings/rows.h"

#include <Python.h>
#include <structmember.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace envfleet::bindings {

namespace {

struct RowsObject {
  PyObject_HEAD;
  PyObject* fields[Rows::kNumFields];
};

PyTypeObject* rows_type = nullptr;  // made once, with the module

void deallocate(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  for (PyObject* field : reinterpret_cast<RowsObject*>(self)->fields) Py_XDECREF(field);
  type->tp_free(self);
  Py_DECREF(type);
}

constexpr PyMemberDef member(const char* name, Rows::Field field) {
  // Of the kind of a __slots__ entry, for which the interpreter has a fast path.
  return {name, T_OBJECT_EX, static_cast<Py_ssize_t>(offsetof(RowsObject, fields) + field * sizeof(PyObject*)), READONLY,
          nullptr};
}

PyMemberDef members[] = {
    member("obs", Rows::kObs),
    member("reward", Rows::kReward),
    member("terminated", Rows::kTerminated),
    member("truncated", Rows::kTruncated),
    member("env_id", Rows::kEnvId),
    member("elapsed_step", Rows::kElapsedStep),
    member("info", Rows::kInfo),
    member("final_obs", Rows::kFinalObs),
    member("final_elapsed_step", Rows::kFinalElapsedStep),
    member("final_info", Rows::kFinalInfo),
    member("faults", Rows::kFaults),
    member("replies", Rows::kReplies),
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
    {Py_tp_members, members},
    {0, nullptr},
};

PyType_Spec spec = {"envfleet._native.Rows", sizeof(RowsObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                    slots};

}  // namespace

Rows::Rows() : object_(nb::steal(nb::detail::raise_if_null(rows_type->tp_alloc(rows_type, 0)))) {}

void Rows::set(Field field, PyObject* value) {
  if (value == nullptr) throw nb::python_error();
  reinterpret_cast<RowsObject*>(object_.ptr())->fields[field] = value;
}

nb::object Rows::release() {
  for (PyObject*& field : reinterpret_cast<RowsObject*>(object_.ptr())->fields) {
    if (field == nullptr) field = Py_NewRef(Py_None);
  }
  return std::move(object_);
}

BatchClass::BatchClass(nb::object type) : type_(std::move(type)) {
  static constexpr const char* kNames[kNumSlots] = {"obs",          "reward", "terminated", "truncated", "env_id",
                                                    "elapsed_step", "info",   "final",      "faults"};
  for (int slot = 0; slot < kNumSlots; ++slot) {
    const nb::object descriptor = type_.attr(kNames[slot]);
    if (Py_TYPE(descriptor.ptr()) != &PyMemberDescr_Type) {
      throw std::invalid_argument(std::string("expected a class with __slots__, got none for ") + kNames[slot]);
    }
    offsets_[slot] = reinterpret_cast<PyMemberDescrObject*>(descriptor.ptr())->d_member->offset;
  }
}

nb::object BatchClass::make() const {
  auto* type = reinterpret_cast<PyTypeObject*>(type_.ptr());
  return nb::steal(nb::detail::raise_if_null(type->tp_alloc(type, 0)));
}

void BatchClass::set(const nb::object& batch, Slot slot, PyObject* value) const {
  if (value == nullptr) throw nb::python_error();
  *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(batch.ptr()) + offsets_[slot]) = value;
}

void bind_rows(nb::module_& module) {
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) throw nb::python_error();
  rows_type = reinterpret_cast<PyTypeObject*>(type);
  module.attr("Rows") = nb::borrow(type);
}

}  // namespace envfleet::bindings
