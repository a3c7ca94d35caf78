// with_error_handler(): runs calls of MuJoCo so that its errors become exceptions.
//
// MuJoCo ends the process when its engine fails (a full stack, an invalid state), unless the thread has installed an error
// handler. Ours leaves the failed call with longjmp: MuJoCo's engine is C and has no destructors to skip, and an exception
// must not be thrown through it. Memory of the failed call (its part of the mjData's own stack) is lost, so the mjData of
// a failed call can only be deleted.
//
// Thread safety: any thread; the previous handlers are restored afterwards.
// Invariant: body holds no object with a destructor while it calls MuJoCo.
#pragma once

#include <setjmp.h>

#include <stdexcept>
#include <string>

namespace envfleet::mujoco {

struct ErrorFrame {
  jmp_buf jump_target;
  char message[1024];
  ErrorFrame* outer;
  bool is_quiet;         // warnings are dropped
  void* previous_error;  // the handlers that this thread had
  void* previous_warning;
};

// Install this thread's handlers, and restore the previous ones. Throws if this version of MuJoCo has no handlers.
void install_handlers(ErrorFrame& frame);
void restore_handlers(ErrorFrame& frame);

template <class Body>
void with_error_handler(Body&& body, bool is_quiet = false) {
  ErrorFrame frame;
  frame.is_quiet = is_quiet;
  install_handlers(frame);
  if (_setjmp(frame.jump_target) == 0) {
    body();
    restore_handlers(frame);
    return;
  }
  restore_handlers(frame);
  throw std::runtime_error(std::string("MuJoCo: ") + frame.message);
}

}  // namespace envfleet::mujoco
