#include "page_lock.h"

#include <dlfcn.h>
#include <unistd.h>

namespace envfleet::engine {

namespace {

// The driver's C interface, as cuda.h declares it.
using Context = void*;
constexpr unsigned kPortable = 1;  // CU_MEMHOSTREGISTER_PORTABLE: for the contexts of all devices

struct Driver {
  int (*get_current)(Context*) = nullptr;
  int (*push_current)(Context) = nullptr;
  int (*pop_current)(Context*) = nullptr;
  int (*host_register)(void*, std::size_t, unsigned) = nullptr;
  int (*host_unregister)(void*) = nullptr;
  int (*copy_to_device)(std::uintptr_t, const void*, std::size_t, void*) = nullptr;
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

Driver driver;

int lock_with_driver(void* data, std::size_t num_bytes, void** context) {
  const int error = driver.get_current(context);
  if (error != 0 || *context == nullptr) return error != 0 ? error : -1;
  return driver.host_register(data, num_bytes, kPortable);
}

int unlock_with_driver(void* data, void* context) {
  // A garbage collector's thread has no current context.
  if (const int error = driver.push_current(context)) return error;
  const int error = driver.host_unregister(data);
  Context popped;
  driver.pop_current(&popped);
  return error;
}

bool load_driver() {
  // NOLOAD: a program that never touched CUDA does not pay for its driver.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return library != nullptr && find(library, "cuCtxGetCurrent", driver.get_current) &&
         find(library, "cuCtxPushCurrent_v2", driver.push_current) && find(library, "cuCtxPopCurrent_v2", driver.pop_current) &&
         find(library, "cuMemHostRegister_v2", driver.host_register) &&
         find(library, "cuMemHostUnregister", driver.host_unregister) &&
         find(library, "cuMemcpyHtoDAsync_v2", driver.copy_to_device);
}

}  // namespace

const PageLockFunctions* cuda_page_lock_functions() {
  static const PageLockFunctions functions{lock_with_driver, unlock_with_driver};
  static bool is_loaded = false;
  // Asked again until it is there: torch loads the driver with its first use of a device.
  if (!is_loaded) is_loaded = load_driver();
  return is_loaded ? &functions : nullptr;
}

bool copy_to_device(std::uintptr_t target, const void* source, std::size_t num_bytes, void* stream) {
  return cuda_page_lock_functions() != nullptr && driver.copy_to_device(target, source, num_bytes, stream) == 0;
}

PageLock::~PageLock() {
  // A forked child has the flags of its parent and no locks: there the driver would refuse, or worse.
  if (functions_ != nullptr && process_ == getpid()) functions_->unlock(data_, context_);
}

bool PageLock::lock(void* data, std::size_t num_bytes, const PageLockFunctions* functions) {
  if (was_tried_ || functions == nullptr) return is_locked();
  was_tried_ = true;
  if (functions->lock(data, num_bytes, &context_) != 0) return false;
  functions_ = functions;
  data_ = data;
  process_ = getpid();
  return true;
}

}  // namespace envfleet::engine
