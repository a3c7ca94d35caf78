// What a step costs, measured: CostMeter; and whether to wake the crew for it: ModeChooser.
//
// Thread safety: CostMeter::add from any thread; everything else from the caller's.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

namespace envfleet::engine {

// A running estimate of the nanoseconds that one env's step takes.
class CostMeter {
 public:
  void add(std::int64_t rows, std::int64_t ns) {
    rows_.fetch_add(rows, std::memory_order_relaxed);
    ns_.fetch_add(ns, std::memory_order_relaxed);
  }

  // Nanoseconds a row; 0 as long as nothing was measured.
  double estimate() {
    const std::int64_t rows = rows_.exchange(0, std::memory_order_relaxed);
    const std::int64_t ns = ns_.exchange(0, std::memory_order_relaxed);
    if (rows <= 0) return ns_per_row_;
    const double sample = static_cast<double>(std::max<std::int64_t>(ns, 1)) / static_cast<double>(rows);
    // A thread that lost its core for a while must not make a cheap env look dear for long.
    ns_per_row_ = ns_per_row_ == 0 ? sample : ns_per_row_ + 0.2 * (std::min(sample, 4 * ns_per_row_) - ns_per_row_);
    return ns_per_row_;
  }

 private:
  alignas(64) std::atomic<std::int64_t> rows_{0};
  std::atomic<std::int64_t> ns_{0};
  double ns_per_row_ = 0;
};

// Chooses between running a batch in the caller's thread and sharing it with the crew,
// by what each took lately for batches of about that size. The one that is not in use is
// tried again for a few batches now and then: a core that was busy may be free by now.
class ModeChooser {
 public:
  bool choose_inline(std::int64_t rows, double ns_per_row) {
    Record& record = record_of(rows);
    const double total = ns_per_row * static_cast<double>(rows);
    if (ns_per_row > 0 && total < kNeverWorthWaking) return true;
    // An env of unknown or high cost goes to the crew without a trial in the caller.
    if (ns_per_row == 0 || total > kAlwaysWorthWaking) return false;
    ++record.calls;
    if (record.inline_ns == 0) return true;
    if (record.crew_ns == 0) return false;
    const bool inline_is_better = record.inline_ns <= record.crew_ns;
    const bool on_trial = record.calls % kTrialEvery < kTrialLength;
    return on_trial ? !inline_is_better : inline_is_better;
  }

  void record(std::int64_t rows, bool was_inline, std::int64_t ns) {
    Record& record = record_of(rows);
    double& mean = was_inline ? record.inline_ns : record.crew_ns;
    const double sample = static_cast<double>(ns) / static_cast<double>(rows);
    // Down fast, up slowly: the first batches of a trial find the crew asleep, and a
    // stolen core is no property of the mode.
    mean = mean == 0 ? sample : mean + (sample < mean ? 0.5 : 0.05) * (sample - mean);
  }

 private:
  struct Record {
    double inline_ns = 0, crew_ns = 0;  // a row
    std::uint32_t calls = 0;
  };
  Record& record_of(std::int64_t rows) { return records_[std::bit_width(static_cast<std::uint64_t>(rows))]; }

  static constexpr double kNeverWorthWaking = 4'000;
  static constexpr double kAlwaysWorthWaking = 1'000'000;
  static constexpr std::uint32_t kTrialEvery = 2048;
  static constexpr std::uint32_t kTrialLength = 64;  // a halted core takes its time to wake
  std::array<Record, 65> records_{};
};

}  // namespace envfleet::engine
