// Time limits as the Python layer gives them, in nanoseconds of engine::now_ns().
#pragma once

#include <algorithm>
#include <cstdint>

namespace envfleet::bindings {

// How long closing a pool waits: for another thread's call to end, for workers to leave.
constexpr std::int64_t kCloseTimeoutNs = 5'000'000'000;
// How long a call that was asked to end may take to do so.
constexpr std::int64_t kInterruptTimeoutNs = 1'000'000'000;
// How long another core may take to see what this one wrote; far less in truth.
constexpr std::int64_t kSettleNs = 2'000'000;

// Negative: no limit. Cut off where nanoseconds would not fit.
inline std::int64_t to_ns(double seconds) {
  return seconds < 0 ? -1 : static_cast<std::int64_t>(std::min(seconds, 1e9) * 1e9);
}

}  // namespace envfleet::bindings
