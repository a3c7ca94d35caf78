#include "engine/call_guard.h"

#include <pthread.h>

#include <atomic>

namespace envfleet::engine {

std::int64_t fork_generation() {
  static std::atomic<std::int64_t> forks{0};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return forks.load(std::memory_order_relaxed);
}

}  // namespace envfleet::engine
