// The part of the CUDA driver's interface that envfleet uses, on host memory: each stream is a thread that works off its
// queue late, as a busy GPU does. Memory that is changed or freed before its copy ran shows as a wrong copy.
//
// cuMemHostRegister() refuses ranges that share a page, as the driver does. report() counts what is still registered.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>

namespace {

struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t num_recorded = 0, num_done = 0;  // records that were queued, and that were reached

  bool is_done() {
    std::lock_guard lock(mutex);
    return num_done == num_recorded;
  }
  void wait_for(std::uint64_t record) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return num_done >= record; });
  }
};

class Stream {
 public:
  explicit Stream(unsigned seed) : random_(seed), thread_([this] { run(); }) {}
  ~Stream() {
    push(nullptr);
    thread_.join();
  }
  void push(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_all();
  }
  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty(); });
  }

 private:
  void run() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !queue_.empty(); });
        work = queue_.front();
      }
      if (work == nullptr) return;
      // Most work is done at once; some waits for as long as a few steps take.
      if (random_() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 500));
      work();
      std::lock_guard lock(mutex_);
      queue_.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::minstd_rand random_;
  std::thread thread_;
};

constexpr std::uintptr_t kPage = 4096;
std::mutex registered_mutex;
std::map<std::uintptr_t, std::uintptr_t> registered;  // first and last page of each range
std::map<std::uintptr_t, std::uintptr_t> addresses;   // first page by address
int num_registrations = 0, context_marker = 0;
unsigned num_streams = 0;

// Never destroyed: at exit its thread may still work.
Stream& stream_of(void* stream) {
  static auto& first = *new Stream(7);
  return stream == nullptr ? first : *static_cast<Stream*>(stream);
}

}  // namespace

extern "C" {

int cuCtxGetCurrent(void** context) { return *context = &context_marker, 0; }
int cuCtxPushCurrent_v2(void*) { return 0; }
int cuCtxPopCurrent_v2(void**) { return 0; }

int cuMemHostRegister_v2(void* data, std::size_t num_bytes, unsigned) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = address / kPage, last = (address + num_bytes - 1) / kPage;
  std::lock_guard lock(registered_mutex);
  for (const auto& [other_first, other_last] : registered) {
    if (first <= other_last && other_first <= last) return 712;  // CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
  }
  registered[first] = last;
  addresses[address] = first;
  ++num_registrations;
  return 0;
}

int cuMemHostUnregister(void* data) {
  std::lock_guard lock(registered_mutex);
  const auto found = addresses.find(reinterpret_cast<std::uintptr_t>(data));
  if (found == addresses.end()) return 713;  // CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
  registered.erase(found->second);
  addresses.erase(found);
  return 0;
}

int cuMemcpyHtoDAsync_v2(std::uintptr_t target, const void* source, std::size_t num_bytes, void* stream) {
  stream_of(stream).push([=] { std::memcpy(reinterpret_cast<void*>(target), source, num_bytes); });
  return 0;
}

int cuMemcpyDtoHAsync_v2(void* target, std::uintptr_t source, std::size_t num_bytes, void* stream) {
  stream_of(stream).push([=] { std::memcpy(target, reinterpret_cast<const void*>(source), num_bytes); });
  return 0;
}

int cuStreamCreate(void** stream, unsigned) { return *stream = new Stream(++num_streams), 0; }
int cuStreamDestroy_v2(void* stream) { return delete static_cast<Stream*>(stream), 0; }
int cuStreamSynchronize(void* stream) { return stream_of(stream).synchronize(), 0; }

int cuStreamWaitEvent(void* stream, void* raw, unsigned) {
  auto* event = static_cast<Event*>(raw);
  std::uint64_t record = 0;
  {
    std::lock_guard lock(event->mutex);
    record = event->num_recorded;
  }
  stream_of(stream).push([=] { event->wait_for(record); });
  return 0;
}

int cuEventCreate(void** event, unsigned) { return *event = new Event, 0; }
int cuEventDestroy_v2(void*) { return 0; }  // a stream may still wait for it
int cuEventRecord(void* raw, void* stream) {
  auto* event = static_cast<Event*>(raw);
  std::uint64_t record = 0;
  {
    std::lock_guard lock(event->mutex);
    record = ++event->num_recorded;
  }
  stream_of(stream).push([=] {
    std::lock_guard lock(event->mutex);
    event->num_done = std::max(event->num_done, record);  // it may have been recorded on several streams
    event->changed.notify_all();
  });
  return 0;
}
int cuEventQuery(void* event) { return static_cast<Event*>(event)->is_done() ? 0 : 600; }  // CUDA_ERROR_NOT_READY
int cuEventSynchronize(void* raw) {
  auto* event = static_cast<Event*>(raw);
  std::uint64_t record = 0;
  {
    std::lock_guard lock(event->mutex);
    record = event->num_recorded;
  }
  event->wait_for(record);
  return 0;
}

// The number of ranges that are registered, and of registrations so far.
void report(int* num_registered, int* num_so_far) {
  std::lock_guard lock(registered_mutex);
  *num_registered = static_cast<int>(registered.size());
  *num_so_far = num_registrations;
}
}
