#include "bindings/batch_class.h"

#include <Python.h>
#include <structmember.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace nb = nanobind;

namespace envfleet::bindings {

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

}  // namespace envfleet::bindings
