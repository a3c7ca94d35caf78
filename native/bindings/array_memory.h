// ArrayMemory: large numpy arrays whose memory is used again when the last reference dies.
//
// Fresh memory of a megabyte costs more in page faults than its filling: the system zeroes every page.
//
// Thread safety: arrays may die on any thread; make() is called with the GIL held.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "numpy_api.h"

namespace envfleet::bindings {

class ArrayMemory {
 public:
  // A new uninitialised array, or null with an error set. Takes over the reference to the descriptor.
  PyObject* make(PyArray_Descr* descriptor, int ndim, const npy_intp* shape, std::int64_t num_bytes);

 private:
  // Outlives this object for as long as an array does.
  struct Shelf {
    ~Shelf();
    std::mutex mutex;
    std::vector<void*> free;
    std::int64_t num_bytes = 0;  // of each
  };
  struct Loan {
    std::shared_ptr<Shelf> shelf;
    void* data;
    std::int64_t num_bytes;
  };
  static void give_back(PyObject* capsule);

  std::shared_ptr<Shelf> shelf_ = std::make_shared<Shelf>();
};

}  // namespace envfleet::bindings
