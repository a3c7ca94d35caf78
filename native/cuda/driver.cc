#include "cuda/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "engine/wait.h"

namespace envfleet::cuda {

namespace {

// The driver's C interface, as cuda.h of the CUDA toolkit declares it.
constexpr unsigned kPortable = 1;         // CU_MEMHOSTREGISTER_PORTABLE: for the contexts of all devices
constexpr unsigned kNonBlocking = 1;      // CU_STREAM_NON_BLOCKING: no order with the default stream
constexpr unsigned kBlockingSync = 1;     // CU_EVENT_BLOCKING_SYNC: who waits for it sleeps
constexpr unsigned kDisableTiming = 2;    // CU_EVENT_DISABLE_TIMING
constexpr int kNotReady = 600;            // CUDA_ERROR_NOT_READY
constexpr std::int64_t kSpinNs = 30'000;  // waking up takes about as long

struct Driver {
  int (*get_current)(void**) = nullptr;
  int (*push_current)(void*) = nullptr;
  int (*pop_current)(void**) = nullptr;
  int (*host_register)(void*, std::size_t, unsigned) = nullptr;
  int (*host_unregister)(void*) = nullptr;
  int (*copy_to_device)(std::uintptr_t, const void*, std::size_t, void*) = nullptr;
  int (*copy_to_host)(void*, std::uintptr_t, std::size_t, void*) = nullptr;
  int (*stream_create)(void**, unsigned) = nullptr;
  int (*stream_destroy)(void*) = nullptr;
  int (*stream_synchronize)(void*) = nullptr;
  int (*stream_wait_event)(void*, void*, unsigned) = nullptr;
  int (*event_create)(void**, unsigned) = nullptr;
  int (*event_destroy)(void*) = nullptr;
  int (*event_record)(void*, void*) = nullptr;
  int (*event_query)(void*) = nullptr;
  int (*event_synchronize)(void*) = nullptr;
};

Driver driver;

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool load_driver() {
  // NOLOAD: a program that never touched CUDA does not pay for its driver.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return library != nullptr && find(library, "cuCtxGetCurrent", driver.get_current) &&
         find(library, "cuCtxPushCurrent_v2", driver.push_current) &&
         find(library, "cuCtxPopCurrent_v2", driver.pop_current) &&
         find(library, "cuMemHostRegister_v2", driver.host_register) &&
         find(library, "cuMemHostUnregister", driver.host_unregister) &&
         find(library, "cuMemcpyHtoDAsync_v2", driver.copy_to_device) &&
         find(library, "cuMemcpyDtoHAsync_v2", driver.copy_to_host) &&
         find(library, "cuStreamCreate", driver.stream_create) &&
         find(library, "cuStreamDestroy_v2", driver.stream_destroy) &&
         find(library, "cuStreamSynchronize", driver.stream_synchronize) &&
         find(library, "cuStreamWaitEvent", driver.stream_wait_event) &&
         find(library, "cuEventCreate", driver.event_create) && find(library, "cuEventDestroy_v2", driver.event_destroy) &&
         find(library, "cuEventRecord", driver.event_record) && find(library, "cuEventQuery", driver.event_query) &&
         find(library, "cuEventSynchronize", driver.event_synchronize);
}

bool has_driver() {
  static bool is_loaded = false;
  // Asked again until it is there: torch loads the driver with its first use of a device.
  if (!is_loaded) is_loaded = load_driver();
  return is_loaded;
}

// A garbage collector's thread has no current context.
class CurrentContext {
 public:
  explicit CurrentContext(void* context) : is_pushed_(driver.push_current(context) == 0) {}
  ~CurrentContext() {
    void* popped;
    if (is_pushed_) driver.pop_current(&popped);
  }

 private:
  bool is_pushed_;
};

void check(int error, const char* what) {
  if (error != 0)
    throw std::runtime_error(std::string("the CUDA driver failed to ") + what + ": error " + std::to_string(error));
}

void* current_context() {
  if (!has_driver()) throw std::runtime_error("expected a process that has loaded the CUDA driver, found none");
  void* context = nullptr;
  check(driver.get_current(&context), "find its context");
  if (context == nullptr)
    throw std::runtime_error("expected a thread with a CUDA context, found none; use torch.cuda in it first");
  return context;
}

int lock_with_driver(void* data, std::size_t num_bytes, void** context) {
  const int error = driver.get_current(context);
  if (error != 0 || *context == nullptr) return error != 0 ? error : -1;
  return driver.host_register(data, num_bytes, kPortable);
}

int unlock_with_driver(void* data, void* context) {
  const CurrentContext current(context);
  return driver.host_unregister(data);
}

}  // namespace

const PageLockFunctions* cuda_page_lock_functions() {
  static const PageLockFunctions functions{lock_with_driver, unlock_with_driver};
  return has_driver() ? &functions : nullptr;
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

UploadStream::UploadStream() : context_(current_context()), process_(getpid()) {
  check(driver.stream_create(&stream_, kNonBlocking), "create a stream");
}

UploadStream::~UploadStream() {
  if (process_ != getpid()) return;  // a forked child cannot use its parent's driver
  const CurrentContext current(context_);
  // Memory that a copy still reads may be freed after this.
  for (void* event : pending_) {
    driver.event_synchronize(event);
    driver.event_destroy(event);
  }
  for (void* event : unused_) driver.event_destroy(event);
  if (allocated_ != nullptr) driver.event_destroy(allocated_);
  if (reached_ != nullptr) driver.event_destroy(reached_);
  driver.stream_destroy(stream_);
}

void UploadStream::mark_allocated(void* user_stream) {
  if (allocated_ == nullptr) check(driver.event_create(&allocated_, kDisableTiming), "create an event");
  check(driver.event_record(allocated_, user_stream), "record an event");
}

std::int64_t UploadStream::start(void* user_stream, const std::vector<Copy>& copies, bool on_user_stream) {
  void* stream = on_user_stream ? user_stream : stream_;
  if (!on_user_stream && allocated_ != nullptr) check(driver.stream_wait_event(stream, allocated_, 0), "order two streams");
  void* copied = nullptr;
  if (unused_.empty()) {
    check(driver.event_create(&copied, kDisableTiming), "create an event");
  } else {
    copied = unused_.back();
    unused_.pop_back();
  }
  pending_.push_back(copied);
  for (const Copy& copy : copies) {
    check(driver.copy_to_device(copy.target, copy.source, copy.num_bytes, stream), "start a copy to the device");
  }
  check(driver.event_record(copied, stream), "record an event");
  if (!on_user_stream) check(driver.stream_wait_event(user_stream, copied, 0), "order two streams");
  return num_done_ + static_cast<std::int64_t>(pending_.size());
}

std::int64_t UploadStream::num_done() {
  while (!pending_.empty()) {
    const int error = driver.event_query(pending_.front());
    if (error == kNotReady) break;
    check(error, "finish a copy to the device");
    unused_.push_back(pending_.front());
    pending_.pop_front();
    ++num_done_;
  }
  return num_done_;
}

void UploadStream::wait(std::int64_t number) {
  for (std::int64_t i = 0; i < number - num_done_; ++i) {
    check(driver.event_synchronize(pending_[static_cast<std::size_t>(i)]), "finish a copy to the device");
  }
}

void UploadStream::wait_for_stream(void* user_stream) {
  if (reached_ == nullptr) check(driver.event_create(&reached_, kDisableTiming | kBlockingSync), "create an event");
  check(driver.event_record(reached_, user_stream), "record an event");
  const std::int64_t start = engine::now_ns();
  do {
    const int error = driver.event_query(reached_);
    if (error == 0) return;
    if (error != kNotReady) check(error, "finish the work of a stream");
  } while (engine::now_ns() - start < kSpinNs);
  check(driver.event_synchronize(reached_), "finish the work of a stream");
}

void copy_to_host(void* stream, void* target, std::uintptr_t source, std::size_t num_bytes) {
  current_context();
  check(driver.copy_to_host(target, source, num_bytes, stream), "start a copy from the device");
}

void synchronize_stream(void* stream) {
  current_context();
  check(driver.stream_synchronize(stream), "finish the work of a stream");
}

}  // namespace envfleet::cuda
