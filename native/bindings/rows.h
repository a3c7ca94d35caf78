// Rows: the rows of a batch as Python sees them: a small Python object with named attributes.
//
// A plain extension type and not a nanobind class: step() makes one per call, and CPython reads its attributes as fast as
// those of a class with __slots__.
//
// BatchClass: envfleet.batch.Batch itself, for batches that need no work in Python.
//
// Thread safety: as any Python object, with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

namespace envfleet::bindings {

class Rows {
 public:
  // In the order of the attributes, which _native.pyi documents.
  enum Field {
    kObs,
    kReward,
    kTerminated,
    kTruncated,
    kEnvId,
    kElapsedStep,
    kInfo,
    kFinalObs,
    kFinalElapsedStep,
    kFinalInfo,
    kFaults,
    kReplies,
    kNumFields
  };

  // Throws python_error if memory runs out.
  Rows();

  // Sets an attribute, once. Takes over a new reference; throws python_error if it is null, which stands for a Python
  // error that is set.
  void set(Field field, PyObject* value);
  void set(Field field, nanobind::object value) { set(field, value.release().ptr()); }
  // The finished object. Attributes that were not set are None.
  nanobind::object release();

 private:
  nanobind::object object_;
};

class BatchClass {
 public:
  // In the order of the arguments of Batch.__init__().
  enum Slot { kObs, kReward, kTerminated, kTruncated, kEnvId, kElapsedStep, kInfo, kFinal, kFaults, kNumSlots };

  // Throws std::invalid_argument if the class does not have all of these in its __slots__.
  explicit BatchClass(nanobind::object type);

  // An instance without values. Throws python_error if memory runs out.
  nanobind::object make() const;
  // As Rows::set(), for a slot that has no value yet.
  void set(const nanobind::object& batch, Slot slot, PyObject* value) const;

 private:
  nanobind::object type_;
  Py_ssize_t offsets_[kNumSlots];
};

}  // namespace envfleet::bindings
