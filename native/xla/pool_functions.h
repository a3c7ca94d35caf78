// What the handlers of XLA programs need of envfleet: a table of C functions.
//
// The module envfleet._native implements the table; the library of the handlers (handlers.cc) is built against the headers
// of jaxlib and gets the table when it is loaded. So the one needs no jaxlib, the other neither Python nor the engine.
//
// Thread safety: any thread may call any function, without the GIL.
#pragma once

#include <cstdint>

namespace envfleet::xla {

// Raised with every change of this file.
inline constexpr std::int32_t kPoolFunctionsVersion = 1;

// A pool that XLA programs step, and a batch of its rows. Defined in native/bindings/xla_port.h.
struct Port;
struct Batch;

// The elements of one array, contiguous in row-major order.
struct Array {
  const void* data;
  std::int32_t dtype;  // ef_dtype in abi.h
  std::int64_t num_elements;
  bool is_locked = false;  // in page-locked memory
};

// Actions of some envs. env_ids null: all envs.
struct Actions {
  const Array* leaves;
  std::int64_t num_leaves;
  const std::int32_t* env_ids;
  std::int64_t num_env_ids;
};

// Why a call failed, for people. Ends with a zero.
struct Message {
  char text[8192];
};

struct PoolFunctions {
  std::int32_t version;

  // The port of a token, which lives until it is released; null if its pool is gone.
  Port* (*acquire)(std::int64_t token);
  void (*release)(Port* port);

  // send() returns false, and the others null, on failure; then the message is set.
  bool (*send)(Port* port, const Actions* actions, Message* message);
  Batch* (*recv)(Port* port, Message* message);
  Batch* (*step)(Port* port, const Actions* actions, Message* message);

  // The columns of a batch, in the order that its port was made with. They are valid until it is released.
  const Array* (*columns)(const Batch* batch, std::int64_t* count);
  // Page-locks the memory of the columns for copies to a GPU where all batches use the same memory, and sets is_locked;
  // the other columns must be copied to other memory first. For a thread with a current CUDA context. Returns true if
  // the next send() or step() overwrites what is locked.
  bool (*lock_pages)(Port* port, Batch* batch);
  void (*release_batch)(Batch* batch);
};

}  // namespace envfleet::xla
