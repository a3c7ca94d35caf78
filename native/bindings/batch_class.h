// BatchClass: makes instances of envfleet.core.batch.Batch by filling their slots, which takes a fraction of a call of the
// class.
//
// Thread safety: as any Python object, with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

namespace envfleet::bindings {

class BatchClass {
 public:
  // In the order of the arguments of Batch.__init__().
  enum Slot { kObs, kReward, kTerminated, kTruncated, kEnvId, kElapsedStep, kInfo, kFinal, kFaults, kNumSlots };

  // Throws std::invalid_argument if the class does not have all of these in its __slots__.
  explicit BatchClass(nanobind::object type);

  // An instance without values. Throws python_error if memory runs out.
  nanobind::object make() const;
  // For a slot that has no value yet. Takes over a new reference; throws python_error if it is null, which stands for a
  // Python error that is set.
  void set(const nanobind::object& batch, Slot slot, PyObject* value) const;

 private:
  nanobind::object type_;
  Py_ssize_t offsets_[kNumSlots];
};

}  // namespace envfleet::bindings
