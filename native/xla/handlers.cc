// The handlers through which XLA programs step pools: envfleet_step, envfleet_send and envfleet_recv, for the CPU and for
// CUDA.
//
//   step   handle, actions..., [env_ids] -> handle, columns...
//   send   handle, actions..., [env_ids] -> handle
//   recv   handle -> handle, columns...
//
// The attribute `token` names the pool and `num_leaves` counts the arrays of an action. The handle orders the calls: each
// returns the one that the next call takes. It shares its memory with the one that was passed (input_output_aliases), so
// it is never written.
//
// A dtype that jax has narrowed (float64 to float32 without jax_enable_x64) is converted on the way.
//
// On CUDA, actions come by one copy on XLA's stream, which the handler waits for; the envs need them. Columns go by copies
// that nobody waits for: the memory they read is kept until an event of the stream says that they are done.
//
// Built against the headers of jaxlib; see src/envfleet/apis/common/xla_library.py.
#include <dlfcn.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "pool_functions.h"
#include "xla/ffi/api/ffi.h"

#define ENVFLEET_EXPORT extern "C" __attribute__((visibility("default")))

namespace envfleet::xla {

namespace ffi = ::xla::ffi;

namespace {

const PoolFunctions* pools = nullptr;

ffi::Error failure(const std::string& what) { return ffi::Error(ffi::ErrorCode::kFailedPrecondition, what); }

// ---------------------------------------------------------------------------------------------------------- dtypes

// ef_dtype in abi.h.
enum DType : std::int32_t { kBool, kUint8, kInt8, kUint16, kInt16, kUint32, kInt32, kUint64, kInt64, kFloat32, kFloat64 };

std::int32_t dtype_of(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::PRED:
      return kBool;
    case ffi::DataType::U8:
      return kUint8;
    case ffi::DataType::S8:
      return kInt8;
    case ffi::DataType::U16:
      return kUint16;
    case ffi::DataType::S16:
      return kInt16;
    case ffi::DataType::U32:
      return kUint32;
    case ffi::DataType::S32:
      return kInt32;
    case ffi::DataType::U64:
      return kUint64;
    case ffi::DataType::S64:
      return kInt64;
    case ffi::DataType::F32:
      return kFloat32;
    case ffi::DataType::F64:
      return kFloat64;
    default:
      return -1;
  }
}

std::size_t size_of(std::int32_t dtype) {
  constexpr std::size_t sizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8};
  return sizes[dtype];
}

template <class Source, class Target>
void convert(const void* source, void* target, std::int64_t count) {
  const auto* from = static_cast<const Source*>(source);
  auto* to = static_cast<Target*>(target);
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<Target>(from[i]);
}

bool is_narrowed(std::int32_t source, std::int32_t target) {
  return (source == kFloat64 && target == kFloat32) || (source == kInt64 && target == kInt32) ||
         (source == kUint64 && target == kUint32);
}

// For dtypes that are equal or is_narrowed().
void copy_elements(const Array& source, std::int32_t dtype, void* target) {
  if (source.dtype == dtype) {
    std::memcpy(target, source.data, static_cast<std::size_t>(source.num_elements) * size_of(dtype));
  } else if (dtype == kFloat32) {
    convert<double, float>(source.data, target, source.num_elements);
  } else if (dtype == kInt32) {
    convert<std::int64_t, std::int32_t>(source.data, target, source.num_elements);
  } else {
    convert<std::uint64_t, std::uint32_t>(source.data, target, source.num_elements);
  }
}

// --------------------------------------------------------------------------------------------------------- buffers

struct Buffer {
  void* data = nullptr;
  std::int32_t dtype = -1;
  std::int64_t num_elements = 0;
  std::size_t num_bytes() const { return static_cast<std::size_t>(num_elements) * size_of(dtype); }
};

Buffer buffer_of(const ffi::AnyBuffer& buffer) {
  return {buffer.untyped_data(), dtype_of(buffer.element_type()), static_cast<std::int64_t>(buffer.element_count())};
}

// The buffers of a call, without their types.
struct Call {
  std::vector<Buffer> arguments, results;
};

template <class Buffers, class Get>
bool read_buffers(const Buffers& given, std::vector<Buffer>& buffers, Get&& get) {
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto found = given.template get<ffi::AnyBuffer>(i);
    if (!found.has_value()) return false;
    buffers.push_back(buffer_of(get(*found)));
    if (buffers.back().dtype < 0) return false;
  }
  return true;
}

bool read_call(const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results, Call& call) {
  return read_buffers(arguments, call.arguments, [](const ffi::AnyBuffer& buffer) { return buffer; }) &&
         read_buffers(results, call.results, [](ffi::Result<ffi::AnyBuffer> buffer) { return *buffer; });
}

struct ReleasePort {
  void operator()(Port* port) const { pools->release(port); }
};
struct ReleaseBatch {
  void operator()(Batch* batch) const { pools->release_batch(batch); }
};
using PortPointer = std::unique_ptr<Port, ReleasePort>;
using BatchPointer = std::unique_ptr<Batch, ReleaseBatch>;

// Checks the columns of a batch against the results of a call. Empty: they fit.
std::string check_columns(const Array* columns, std::int64_t count, const Call& call) {
  if (static_cast<std::size_t>(count) + 1 != call.results.size()) {
    return "expected " + std::to_string(call.results.size() - 1) + " columns, got " + std::to_string(count);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const Buffer& target = call.results[i + 1];
    if (columns[i].num_elements != target.num_elements) {
      return "the traced recv() or step() expected a batch with " + std::to_string(target.num_elements) +
             " elements in column " + std::to_string(i) + ", got " + std::to_string(columns[i].num_elements) +
             "; a synchronous pool's recv() expects that all envs were sent";
    }
    if (columns[i].dtype != target.dtype && !is_narrowed(columns[i].dtype, target.dtype)) {
      return "column " + std::to_string(i) + " of the batch has another dtype than the traced program expects";
    }
  }
  return {};
}

enum class Operation { step, send, recv };

constexpr const char* kNoPool =
    "expected a pool that exists, but the pool of this computation is gone: it and its functions were garbage-collected; "
    "keep the pool while a computation runs";
constexpr const char* kWrongHandle =
    "expected this pool's own handle, got another pool's; pass the handle that this pool's last call returned";

// How many arguments, and the env ids among them.
bool has_right_arguments(Operation operation, const Call& call, std::int64_t num_leaves) {
  if (call.arguments.empty() || call.results.empty() || call.arguments[0].num_bytes() != sizeof(std::int64_t)) return false;
  const auto count = static_cast<std::int64_t>(call.arguments.size()) - 1;
  if (operation == Operation::recv) return count == 0;
  if (count == num_leaves + 1) return call.arguments.back().dtype == kInt32;
  return count == num_leaves;
}

// The actions of a call whose buffers are in host memory; leaves keeps what they point to.
Actions actions_of(const Call& call, std::int64_t num_leaves, std::vector<Array>& leaves) {
  for (std::int64_t i = 0; i < num_leaves; ++i) {
    const Buffer& leaf = call.arguments[i + 1];
    leaves.push_back({leaf.data, leaf.dtype, leaf.num_elements, false});
  }
  Actions actions{leaves.data(), num_leaves, nullptr, 0};
  if (static_cast<std::int64_t>(call.arguments.size()) == num_leaves + 2) {
    actions.env_ids = static_cast<const std::int32_t*>(call.arguments.back().data);
    actions.num_env_ids = call.arguments.back().num_elements;
  }
  return actions;
}

// Runs the operation with arguments in host memory. The batch is null after a send(), and if it failed.
BatchPointer run(Operation operation, Port* port, const Call& call, std::int64_t num_leaves, bool& is_done,
                 Message& message) {
  if (operation == Operation::recv) {
    BatchPointer batch(pools->recv(port, &message));
    is_done = batch != nullptr;
    return batch;
  }
  std::vector<Array> leaves;
  const Actions actions = actions_of(call, num_leaves, leaves);
  if (operation == Operation::send) {
    is_done = pools->send(port, &actions, &message);
    return nullptr;
  }
  BatchPointer batch(pools->step(port, &actions, &message));
  is_done = batch != nullptr;
  return batch;
}

// ------------------------------------------------------------------------------------------------------------- CPU

ffi::Error handle_on_cpu(Operation operation, std::int64_t token, std::int64_t num_leaves,
                         const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results) {
  Call call;
  if (!read_call(arguments, results, call) || !has_right_arguments(operation, call, num_leaves)) {
    return failure("expected the arguments of envfleet.apis.jax, got others");
  }
  std::int64_t own_token = 0;
  std::memcpy(&own_token, call.arguments[0].data, sizeof(own_token));
  if (own_token != token) return failure(kWrongHandle);
  if (call.results[0].data != call.arguments[0].data) std::memcpy(call.results[0].data, &token, sizeof(token));
  const PortPointer port(pools->acquire(token));
  if (port == nullptr) return failure(kNoPool);
  Message message;
  bool is_done = false;
  const BatchPointer batch = run(operation, port.get(), call, num_leaves, is_done, message);
  if (!is_done) return failure(message.text);
  if (batch == nullptr) return ffi::Error::Success();
  std::int64_t count = 0;
  const Array* columns = pools->columns(batch.get(), &count);
  if (const std::string problem = check_columns(columns, count, call); !problem.empty()) return failure(problem);
  for (std::int64_t i = 0; i < count; ++i) {
    copy_elements(columns[i], call.results[i + 1].dtype, call.results[i + 1].data);
  }
  return ffi::Error::Success();
}

// ------------------------------------------------------------------------------------------------------------ CUDA

// The driver's C interface, as cuda.h of the CUDA toolkit declares it.
struct Driver {
  int (*stream_get_context)(void*, void**) = nullptr;
  int (*push_context)(void*) = nullptr;
  int (*pop_context)(void**) = nullptr;
  int (*to_host)(void*, std::uintptr_t, std::size_t, void*) = nullptr;
  int (*to_device)(std::uintptr_t, const void*, std::size_t, void*) = nullptr;
  int (*on_device)(std::uintptr_t, std::uintptr_t, std::size_t, void*) = nullptr;
  int (*stream_synchronize)(void*) = nullptr;
  int (*event_create)(void**, unsigned) = nullptr;
  int (*event_record)(void*, void*) = nullptr;
  int (*event_query)(void*) = nullptr;
  int (*event_synchronize)(void*) = nullptr;
  int (*host_allocate)(void**, std::size_t, unsigned) = nullptr;
  int (*host_free)(void*) = nullptr;
};

constexpr unsigned kPortable = 1;       // CU_MEMHOSTALLOC_PORTABLE: for the contexts of all devices
constexpr unsigned kDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// Null without a driver.
const Driver* cuda_driver() {
  static Driver driver;
  static const bool is_loaded = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    return library != nullptr && find(library, "cuStreamGetCtx", driver.stream_get_context) &&
           find(library, "cuCtxPushCurrent_v2", driver.push_context) &&
           find(library, "cuCtxPopCurrent_v2", driver.pop_context) &&
           find(library, "cuMemcpyDtoHAsync_v2", driver.to_host) &&
           find(library, "cuMemcpyHtoDAsync_v2", driver.to_device) &&
           find(library, "cuMemcpyDtoDAsync_v2", driver.on_device) &&
           find(library, "cuStreamSynchronize", driver.stream_synchronize) &&
           find(library, "cuEventCreate", driver.event_create) && find(library, "cuEventRecord", driver.event_record) &&
           find(library, "cuEventQuery", driver.event_query) &&
           find(library, "cuEventSynchronize", driver.event_synchronize) &&
           find(library, "cuMemHostAlloc", driver.host_allocate) && find(library, "cuMemFreeHost", driver.host_free);
  }();
  return is_loaded ? &driver : nullptr;
}

class CurrentContext {
 public:
  CurrentContext(const Driver& driver, void* stream) : driver_(driver) {
    if (driver.stream_get_context(stream, &context_) == 0) is_pushed_ = driver.push_context(context_) == 0;
  }
  ~CurrentContext() {
    void* popped;
    if (is_pushed_) driver_.pop_context(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  bool is_current() const { return is_pushed_; }
  void* context() const { return context_; }

 private:
  const Driver& driver_;
  void* context_ = nullptr;
  bool is_pushed_ = false;
};

// Page-locked memory that is used again when the copies that used it last are done.
struct Staging {
  char* data = nullptr;
  std::size_t capacity = 0;
};

// What copies of the stream still read or write, and an event that comes after them.
struct Pending {
  void* context = nullptr;
  void* event = nullptr;
  Staging staging;
  BatchPointer batch;               // null: everything was staged
  std::int64_t shared_rows_of = 0;  // the pool that writes its next rows to the memory that is read; 0: none
};

constexpr std::size_t kAlignment = 64;
std::size_t aligned(std::size_t num_bytes) { return (num_bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The memory of all copies, of all pools and streams: a computation leaves no other state behind. Never destroyed: at exit
// the driver may be gone before it.
class CopyMemory {
 public:
  static CopyMemory& instance() {
    static auto* memory = new CopyMemory();
    return *memory;
  }

  // Page-locked memory; null data on failure. Its contents are whatever the last copies left.
  Staging take(const Driver& driver, void* context, std::size_t num_bytes) {
    std::vector<BatchPointer> done;  // released without the lock: that may need the GIL
    const std::lock_guard lock(mutex_);
    collect(driver, context, done);
    for (std::size_t i = 0; i < free_.size(); ++i) {
      if (free_[i].capacity < num_bytes || free_[i].capacity > 4 * aligned(num_bytes) + 4096) continue;
      const Staging found = free_[i];
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
      return found;
    }
    if (free_.size() >= kMaxFree) {
      driver.host_free(free_.front().data);
      free_.erase(free_.begin());
    }
    Staging made;
    made.capacity = aligned(num_bytes);
    void* data = nullptr;
    if (driver.host_allocate(&data, made.capacity, kPortable) != 0) return {};
    made.data = static_cast<char*>(data);
    return made;
  }

  // For memory that no copy uses any more.
  void give_back(const Staging& staging) {
    const std::lock_guard lock(mutex_);
    free_.push_back(staging);
  }

  // Waits for copies from memory to which this pool writes its next rows.
  void wait_for_shared_rows(const Driver& driver, std::int64_t token) {
    std::vector<void*> events;
    {
      const std::lock_guard lock(mutex_);
      for (const Pending& own : pending_) {
        if (own.shared_rows_of == token) events.push_back(own.event);
      }
    }
    // One that another thread uses again by now is waited for longer than needed.
    for (void* event : events) driver.event_synchronize(event);
  }

  // Keeps the memory until what was started on the stream is done.
  void keep(const Driver& driver, void* context, void* stream, const Staging& staging, BatchPointer batch,
            std::int64_t shared_rows_of) {
    BatchPointer done;  // released after the lock
    const std::lock_guard lock(mutex_);
    void* event = nullptr;
    for (std::size_t i = 0; i < events_.size() && event == nullptr; ++i) {
      if (events_[i].first != context) continue;
      event = events_[i].second;
      events_.erase(events_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    const bool has_event = event != nullptr || driver.event_create(&event, kDisableTiming) == 0;
    if (!has_event || driver.event_record(event, stream) != 0) {
      driver.stream_synchronize(stream);
      free_.push_back(staging);
      done = std::move(batch);
      return;
    }
    pending_.push_back({context, event, staging, std::move(batch), shared_rows_of});
  }

 private:
  static constexpr std::size_t kMaxFree = 32;

  void collect(const Driver& driver, void* context, std::vector<BatchPointer>& done) {
    for (std::size_t i = 0; i < pending_.size();) {
      Pending& own = pending_[i];
      if (own.context != context || driver.event_query(own.event) != 0) {
        ++i;
        continue;
      }
      events_.emplace_back(own.context, own.event);
      if (own.staging.data != nullptr) free_.push_back(own.staging);
      done.push_back(std::move(own.batch));
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  std::mutex mutex_;
  std::vector<Pending> pending_;
  std::vector<Staging> free_;
  std::vector<std::pair<void*, void*>> events_;  // context, event
};

std::uintptr_t address(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

ffi::Error driver_failure(const char* what, int error) {
  return failure(std::string("the CUDA driver failed to ") + what + ": error " + std::to_string(error));
}

ffi::Error upload(const Driver& driver, void* context, void* stream, std::int64_t token, Port* port, BatchPointer batch,
                  const Call& call) {
  const bool has_shared_rows = pools->lock_pages(port, batch.get());
  std::int64_t count = 0;
  const Array* columns = pools->columns(batch.get(), &count);
  if (const std::string problem = check_columns(columns, count, call); !problem.empty()) return failure(problem);
  const auto is_direct = [&](std::int64_t i) {
    return columns[i].is_locked && columns[i].dtype == call.results[i + 1].dtype;
  };
  std::size_t num_bytes = 1;
  for (std::int64_t i = 0; i < count; ++i) num_bytes += is_direct(i) ? 0 : aligned(call.results[i + 1].num_bytes());
  CopyMemory& memory = CopyMemory::instance();
  const Staging staging = memory.take(driver, context, num_bytes);
  if (staging.data == nullptr) return failure("the CUDA driver has no page-locked memory for a batch");
  int error = 0;
  bool is_read = false;  // by copies, after this call
  char* next = staging.data;
  for (std::int64_t i = 0; i < count && error == 0; ++i) {
    const Buffer& target = call.results[i + 1];
    const void* source = columns[i].data;
    if (is_direct(i)) {
      is_read = true;
    } else {
      copy_elements(columns[i], target.dtype, next);
      source = next;
      next += aligned(target.num_bytes());
    }
    if (target.num_bytes() != 0) error = driver.to_device(address(target.data), source, target.num_bytes(), stream);
  }
  // Also after an error: some copies may have started.
  if (!is_read) batch.reset();
  memory.keep(driver, context, stream, staging, std::move(batch), is_read && has_shared_rows ? token : 0);
  return error == 0 ? ffi::Error::Success() : driver_failure("start a copy to the device", error);
}

ffi::Error handle_on_cuda(Operation operation, void* stream, std::int64_t token, std::int64_t num_leaves,
                          const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results) {
  Call call;
  if (!read_call(arguments, results, call) || !has_right_arguments(operation, call, num_leaves)) {
    return failure("expected the arguments of envfleet.apis.jax, got others");
  }
  const Driver* driver = cuda_driver();
  if (driver == nullptr) return failure("expected the CUDA driver library libcuda.so.1, found none that can be used");
  const CurrentContext current(*driver, stream);
  if (!current.is_current()) return failure("expected a CUDA stream with a context, got one without");
  const PortPointer port(pools->acquire(token));
  if (port == nullptr) return failure(kNoPool);
  if (call.results[0].data != call.arguments[0].data) {
    const int error =
        driver->on_device(address(call.results[0].data), address(call.arguments[0].data), sizeof(token), stream);
    if (error != 0) return driver_failure("copy a handle", error);
  }
  // The arguments in host memory. The handle of a recv() is not looked at: that would be the only wait of the call.
  Call host = call;
  CopyMemory& memory = CopyMemory::instance();
  Staging staging;
  if (operation != Operation::recv) {
    std::size_t num_bytes = 0;
    for (const Buffer& argument : call.arguments) num_bytes += aligned(argument.num_bytes());
    staging = memory.take(*driver, current.context(), num_bytes);
    if (staging.data == nullptr) return failure("the CUDA driver has no page-locked memory for actions");
    char* next = staging.data;
    int error = 0;
    for (Buffer& argument : host.arguments) {
      if (error == 0 && argument.num_bytes() != 0) {
        error = driver->to_host(next, address(argument.data), argument.num_bytes(), stream);
      }
      argument.data = next;
      next += aligned(argument.num_bytes());
    }
    const int wait_error = driver->stream_synchronize(stream);
    if (error != 0 || wait_error != 0) {
      memory.give_back(staging);
      return driver_failure("copy actions to the host", error != 0 ? error : wait_error);
    }
    std::int64_t own_token = 0;
    std::memcpy(&own_token, host.arguments[0].data, sizeof(own_token));
    if (own_token != token) {
      memory.give_back(staging);
      return failure(kWrongHandle);
    }
  }
  // After the wait for the actions they are done, unless another stream makes them.
  if (operation != Operation::recv) memory.wait_for_shared_rows(*driver, token);
  Message message;
  bool is_done = false;
  BatchPointer batch = run(operation, port.get(), host, num_leaves, is_done, message);
  if (staging.data != nullptr) memory.give_back(staging);
  if (!is_done) return failure(message.text);
  if (batch == nullptr) return ffi::Error::Success();
  return upload(*driver, current.context(), stream, token, port.get(), std::move(batch), call);
}

// No exception may leave a handler: XLA is built without them.
template <class Body>
ffi::Error guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    return failure(std::string("a handler of envfleet raised: ") + error.what());
  } catch (...) {
    return failure("a handler of envfleet raised");
  }
}

template <Operation operation>
ffi::Error on_cpu(std::int64_t token, std::int64_t num_leaves, ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  return guarded([&] { return handle_on_cpu(operation, token, num_leaves, arguments, results); });
}

template <Operation operation>
ffi::Error on_cuda(void* stream, std::int64_t token, std::int64_t num_leaves, ffi::RemainingArgs arguments,
                   ffi::RemainingRets results) {
  return guarded([&] { return handle_on_cuda(operation, stream, token, num_leaves, arguments, results); });
}

}  // namespace

#define ENVFLEET_CPU_BINDING \
  ffi::Ffi::Bind().Attr<std::int64_t>("token").Attr<std::int64_t>("num_leaves").RemainingArgs().RemainingRets()
#define ENVFLEET_CUDA_BINDING            \
  ffi::Ffi::Bind()                       \
      .Ctx<ffi::PlatformStream<void*>>() \
      .Attr<std::int64_t>("token")       \
      .Attr<std::int64_t>("num_leaves")  \
      .RemainingArgs()                   \
      .RemainingRets()

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(envfleet_step_cpu, on_cpu<Operation::step>, ENVFLEET_CPU_BINDING);
XLA_FFI_DEFINE_HANDLER_SYMBOL(envfleet_send_cpu, on_cpu<Operation::send>, ENVFLEET_CPU_BINDING);
XLA_FFI_DEFINE_HANDLER_SYMBOL(envfleet_recv_cpu, on_cpu<Operation::recv>, ENVFLEET_CPU_BINDING);
XLA_FFI_DEFINE_HANDLER_SYMBOL(envfleet_step_cuda, on_cuda<Operation::step>, ENVFLEET_CUDA_BINDING);
XLA_FFI_DEFINE_HANDLER_SYMBOL(envfleet_send_cuda, on_cuda<Operation::send>, ENVFLEET_CUDA_BINDING);
XLA_FFI_DEFINE_HANDLER_SYMBOL(envfleet_recv_cuda, on_cuda<Operation::recv>, ENVFLEET_CUDA_BINDING);
#pragma GCC visibility pop

// Takes the table of functions; false if it is of another version than this library was built with.
ENVFLEET_EXPORT bool envfleet_xla_start(const void* table) {
  const auto* functions = static_cast<const PoolFunctions*>(table);
  if (functions == nullptr || functions->version != kPoolFunctionsVersion) return false;
  pools = functions;
  return true;
}

// The version of XLA's interface that this library was built with: major * 1000 + minor.
ENVFLEET_EXPORT std::int32_t envfleet_xla_api_version() { return XLA_FFI_API_MAJOR * 1000 + XLA_FFI_API_MINOR; }

}  // namespace envfleet::xla
