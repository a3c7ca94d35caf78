// Libenv: the C interface of the library in the procgen package, which envfleet opens at run time.
//
// Procgen implements libenv, version 1, the interface of the gym3 package; the structs below have its layouts. The
// library ends the process if an option or a state is invalid, so callers check both before they call it.
//
// Thread safety: open() from one thread at a time; libenv() and the functions from any, but not twice at a time for the
// same handle.
// Invariant: libenv() is valid from the first open() that succeeded until the process ends: the library is never closed.
#pragma once

#include <cstdint>
#include <string>

namespace envfleet::procgen {

enum LibenvDtype : std::int32_t { kUint8 = 1, kInt32 = 2, kFloat32 = 3 };
enum LibenvSpace : std::int32_t { kObservations = 1, kActions = 2, kInfos = 3 };

union LibenvValue {
  std::uint8_t uint8;
  std::int32_t int32;
  float float32;
};

struct LibenvTensorType {
  char name[128];
  std::int32_t scalar_type;
  std::int32_t dtype;
  std::int32_t shape[16];
  std::int32_t ndim;
  LibenvValue low, high;
};

struct LibenvOption {
  char name[128];
  std::int32_t dtype;
  std::int32_t count;
  void* data;
};

struct LibenvOptions {
  LibenvOption* items;
  std::int32_t count;
};

// Each points to one pointer per array.
struct LibenvBuffers {
  void** observations;
  float* reward;
  std::uint8_t* first;
  void** infos;
  void** actions;
};

struct Libenv {
  using Handle = void;

  int (*version)();
  Handle* (*make)(int num_envs, LibenvOptions options);
  int (*get_tensortypes)(Handle*, LibenvSpace, LibenvTensorType* types);
  void (*set_buffers)(Handle*, LibenvBuffers*);
  void (*observe)(Handle*);
  void (*act)(Handle*);
  void (*close)(Handle*);
  // Procgen's own. get_state returns the number of bytes that it has written.
  int (*get_state)(Handle*, int env, char* data, int size);
  void (*set_state)(Handle*, int env, char* data, int size);

  std::string asset_folder;  // with a separator at the end
};

// Opens the library, unless one is open. Throws std::runtime_error with the reason.
void open_libenv(const char* library, const char* asset_folder);
// Throws std::logic_error before open_libenv().
const Libenv& libenv();

}  // namespace envfleet::procgen
