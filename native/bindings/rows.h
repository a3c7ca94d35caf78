// Rows: the rows of a batch as Python sees them: a small Python object with named attributes.
//
// A plain extension type and not a nanobind class: step() makes one per call, and CPython reads its attributes as fast as
// those of a class with __slots__.
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

}  // namespace envfleet::bindings
