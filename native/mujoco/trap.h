// trapped(): runs calls of MuJoCo so that its errors become exceptions.
//
// MuJoCo ends the process when its engine fails (a full stack, an invalid state). It has one
// handler a thread, meant for bindings, that is asked first. Ours leaves the failed call with
// longjmp: MuJoCo's engine is C, has no destructors to skip, and an exception must not
// be thrown through it. What the failed call held (its part of the mjData's own stack) is lost, so
// the mjData of a failed call is only good for being deleted.
//
// Thread safety: any thread; the handler that was there before is put back.
// Invariant: body holds no object with a destructor while it calls MuJoCo.
#pragma once

#include <setjmp.h>

#include <stdexcept>
#include <string>

namespace envfleet::mujoco {

struct Trap {
  jmp_buf landing;
  char message[1024];
  Trap* outer;
  bool is_quiet;         // warnings are dropped
  void* previous_error;  // the handlers that this thread had
  void* previous_warning;
};

// Sets this thread's handlers, and puts back what was there. Throws where this MuJoCo has none.
void set_trap(Trap& trap);
void lift_trap(Trap& trap);

template <class Body>
void trapped(Body&& body, bool is_quiet = false) {
  Trap trap;
  trap.is_quiet = is_quiet;
  set_trap(trap);
  if (_setjmp(trap.landing) == 0) {
    body();
    lift_trap(trap);
    return;
  }
  lift_trap(trap);
  throw std::runtime_error(std::string("MuJoCo: ") + trap.message);
}

}  // namespace envfleet::mujoco
