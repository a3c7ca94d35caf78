#include "libenv.h"

#include <dlfcn.h>

#include <atomic>
#include <stdexcept>

#include "envfleet/env.h"

namespace envfleet::procgen {

namespace {

std::atomic<const Libenv*> opened{nullptr};

template <class Function>
void find(void* library, const char* name, Function& function) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) throw std::runtime_error(std::string("it has no function ") + name);
  function = reinterpret_cast<Function>(symbol);
}

}  // namespace

void open_libenv(const char* library, const char* asset_folder) {
  if (opened.load(std::memory_order_acquire) != nullptr) return;
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread
    throw std::runtime_error(reason == nullptr ? "dlopen failed" : reason);
  }
  auto* found = new Libenv;
  try {
    find(handle, "libenv_version", found->version);
    find(handle, "libenv_make", found->make);
    find(handle, "libenv_get_tensortypes", found->get_tensortypes);
    find(handle, "libenv_set_buffers", found->set_buffers);
    find(handle, "libenv_observe", found->observe);
    find(handle, "libenv_act", found->act);
    find(handle, "libenv_close", found->close);
    find(handle, "get_state", found->get_state);
    find(handle, "set_state", found->set_state);
    if (const int version = found->version(); version != 1) {
      throw std::runtime_error("it expected version 1 of libenv, got " + std::to_string(version));
    }
  } catch (...) {
    delete found;
    throw;
  }
  found->asset_folder = asset_folder;
  opened.store(found, std::memory_order_release);
}

const Libenv& libenv() {
  const Libenv* found = opened.load(std::memory_order_acquire);
  if (found == nullptr) throw std::logic_error("Procgen's library is not open");
  return *found;
}

}  // namespace envfleet::procgen

// Called by envfleet/families/procgen/plugin.py before it registers the envs. Returns null, or the reason why not, which is
// valid until the next call.
ENVFLEET_EXPORT const char* envfleet_procgen_start(const char* library, const char* asset_folder) {
  static std::string reason;
  try {
    envfleet::procgen::open_libenv(library, asset_folder);
    return nullptr;
  } catch (const std::exception& error) {
    reason = error.what();
    return reason.c_str();
  }
}
