// CostMeter: a running estimate of the nanoseconds that one env takes in one thread.
//
// Thread safety: add() from any thread, update() and estimate() from the caller's.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace envfleet::engine {

class CostMeter {
 public:
  void add(std::int64_t rows, std::int64_t ns) {
    rows_.fetch_add(rows, std::memory_order_relaxed);
    ns_.fetch_add(ns, std::memory_order_relaxed);
  }

  // Takes what was added since the last update into the estimate. Once per batch: the counters are shared by all threads.
  void update() {
    const std::int64_t rows = rows_.exchange(0, std::memory_order_relaxed);
    const std::int64_t ns = ns_.exchange(0, std::memory_order_relaxed);
    if (rows <= 0) return;
    const double sample = static_cast<double>(std::max<std::int64_t>(ns, 1)) / static_cast<double>(rows);
    // A thread that lost its core for a while must not make a cheap env look expensive for long.
    ns_per_row_ = ns_per_row_ == 0 ? sample : ns_per_row_ + 0.2 * (std::min(sample, 4 * ns_per_row_) - ns_per_row_);
  }

  // Nanoseconds per row; 0 until something was measured.
  double estimate() {
    if (ns_per_row_ == 0) [[unlikely]]
      update();
    return ns_per_row_;
  }

 private:
  alignas(64) std::atomic<std::int64_t> rows_{0};
  std::atomic<std::int64_t> ns_{0};
  double ns_per_row_ = 0;
};

}  // namespace envfleet::engine
