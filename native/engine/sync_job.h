// SyncJob: one batch whose row order is fixed, shared between the caller and the thread pool.
//
// The rows are divided into one contiguous part per thread, and each part into blocks. An env stays in the same part, and
// so in the same core's cache, from step to step: an env that changes cores costs a cheap one several steps' time. Hence
//   - parts are as large as their threads are fast, as measured, so that all threads finish at the same time;
//   - a thread that has finished its own part helps another only if that one has more than a few blocks left, because its
//     thread is late. Blocks that are left to a thread which does not get on are taken by the caller, after a while.
//
// Thread safety: publish(), cancel() and the waiting from the caller's thread; run_blocks() and note_speed() from any.
// Lock-free between those. Invariant: a job's fields change only while no block of it is
// unclaimed or unfinished, so a thread that has claimed a block may read them.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/split.h"
#include "engine/wait.h"

namespace envfleet::engine {

class SyncJob {
 public:
  // Parts begin at a multiple of it, unless blocks are smaller. An env with step_lanes() steps a multiple of so many rows at
  // once, and what is left of a block one by one, at several times the cost per row; and so many rewards fill a cache line.
  static constexpr std::int64_t kRowsAtOnce = 8;

  explicit SyncJob(int max_parts) : max_parts_(max_parts), parts_(new Part[max_parts]) {}

  // max_block_rows: how many rows a thread claims at a time, at most. Blocks are the next smaller power of two, which
  // stays the same while the estimate of a row's cost fluctuates. num_to_leave: see run_blocks().
  void publish(std::int64_t num_rows, std::int64_t max_block_rows, int num_parts, int num_to_leave = 0) {
    const int block_shift = std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(max_block_rows, 1))) - 1;
    num_parts = std::min(num_parts, max_parts_);
    const bool is_like_last = num_rows == num_rows_ && block_shift == block_shift_ && num_parts == num_parts_.load();
    // Not after every batch: rows at the border between two parts change cores, and the caller reads every thread's speed.
    if (!is_like_last || ++num_alike_ % kSplitEvery == 0) split(num_rows, block_shift, num_parts);
    if (num_to_leave_.load(std::memory_order_relaxed) != num_to_leave) num_to_leave_.store(num_to_leave);
    blocks_left_.store(num_blocks_, std::memory_order_relaxed);
    // Last: as soon as a part has unclaimed blocks, threads that are still awake run them.
    for (int i = 0; i < num_parts; ++i) parts_[i].unclaimed.store(blocks_of(parts_[i]), std::memory_order_release);
  }

  // Runs the blocks of its own part, then of others, until each of them has num_to_leave blocks left at most (or none,
  // if leaves_none). Returns true if it ran at least one.
  template <class Run>
  bool run_blocks(int own_part, Run&& run, bool leaves_none = false) {
    std::int64_t num_run = 0;
    const int num_parts = num_parts_.load(std::memory_order_relaxed);
    for (int i = 0; i < num_parts; ++i) {
      Part& part = parts_[(own_part + i) % num_parts];
      std::int64_t unclaimed = part.unclaimed.load(std::memory_order_relaxed);
      const bool is_own = i == 0 && own_part < num_parts;
      const std::int64_t num_to_leave = is_own || leaves_none ? 0 : num_to_leave_.load(std::memory_order_relaxed);
      while (unclaimed > num_to_leave) {
        // Acquire: the claim is what makes publish()'s fields visible here.
        if (!part.unclaimed.compare_exchange_weak(unclaimed, unclaimed - 1, std::memory_order_acquire,
                                                  std::memory_order_relaxed)) {
          continue;
        }
        const std::int64_t begin = part.begin + ((unclaimed - 1) << block_shift_);
        run(begin, std::min(begin + (std::int64_t{1} << block_shift_), part.end));
        ++num_run;
        unclaimed = part.unclaimed.load(std::memory_order_relaxed);
      }
    }
    // Once and not per block: all threads change this counter.
    if (num_run > 0) finish_blocks(num_run);
    return num_run > 0;
  }

  // How fast the thread of a part was in the last batch, for the next split.
  void note_speed(int part, std::int64_t num_rows, std::int64_t duration_ns) {
    const double speed = static_cast<double>(num_rows) / static_cast<double>(std::max<std::int64_t>(duration_ns, 1));
    parts_[part].last_speed.store(speed, std::memory_order_relaxed);
  }

  std::int64_t block_rows() const { return std::int64_t{1} << block_shift_; }
  // The first row of each part of the last batch, and the end of the last.
  std::vector<std::int64_t> borders() const {
    std::vector<std::int64_t> rows = {0};
    for (int i = 0; i < num_parts_.load(); ++i) rows.push_back(parts_[i].end);
    return rows;
  }

  // Takes unclaimed blocks back: otherwise a thread that was told to leave would first run the rest of the batch. Their
  // rows are invalid then, but count as finished, so that no wait() hangs on them.
  void cancel() {
    std::int64_t taken_back = 0;
    for (int i = 0; i < max_parts_; ++i) taken_back += parts_[i].unclaimed.exchange(0, std::memory_order_relaxed);
    if (taken_back > 0) finish_blocks(taken_back);
  }

  bool is_done() const { return blocks_left_.load(std::memory_order_seq_cst) == 0; }

  // Waits until all blocks are finished. Returns false after timeout_ns (negative: no limit).
  bool wait(std::int64_t timeout_ns, bool may_spin) {
    return waiter_.wait_until([&] { return is_done(); }, timeout_ns, may_spin);
  }

 private:
  static constexpr int kSplitEvery = 16;
  static constexpr int kUnitsToWeigh = 4;
  static constexpr double kWeight = 0.125;  // of the last batch in the mean speed
  // A thread that lost its core for a moment is not slow.
  static constexpr double kSlowest = 0.7, kFastest = 1.4;

  struct Part {
    alignas(64) std::atomic<std::int64_t> unclaimed{0};  // blocks
    std::int64_t begin = 0, end = 0;                     // rows
    std::atomic<double> last_speed{0};                   // in rows per nanosecond; 0: unknown
    double speed = 1;                                    // a mean, relative to the other threads'; used by the caller
  };

  std::int64_t blocks_of(const Part& part) const {
    return (part.end - part.begin + (std::int64_t{1} << block_shift_) - 1) >> block_shift_;
  }

  void split(std::int64_t num_rows, int block_shift, int num_parts) {
    num_rows_ = num_rows;
    block_shift_ = block_shift;
    num_parts_.store(num_parts, std::memory_order_relaxed);
    const std::int64_t unit = std::min(std::int64_t{1} << block_shift, kRowsAtOnce);
    const std::int64_t num_units = (num_rows + unit - 1) / unit;
    const double total_speed = update_speeds(num_parts);
    double speed_so_far = 0;
    num_blocks_ = 0;
    for (int i = 0; i < num_parts; ++i) {
      Part& part = parts_[i];
      speed_so_far += part.speed;
      // A few units per part cannot be divided by speed; one more or less makes more of a difference.
      const std::int64_t end_unit =
          num_units < kUnitsToWeigh * num_parts
              ? first_of_part(num_units, num_parts, i + 1)
              : static_cast<std::int64_t>(static_cast<double>(num_units) * speed_so_far / total_speed + 0.5);
      part.begin = i == 0 ? 0 : parts_[i - 1].end;
      part.end = i == num_parts - 1 ? num_rows : std::min(end_unit * unit, num_rows);
      num_blocks_ += blocks_of(part);
    }
  }

  // Returns the sum of the first num_parts speeds.
  double update_speeds(int num_parts) {
    double sum = 0, total = 0;
    int num_known = 0;
    for (int i = 0; i < num_parts; ++i) {
      const double last = parts_[i].last_speed.load(std::memory_order_relaxed);
      sum += last;
      num_known += last > 0 ? 1 : 0;
    }
    for (int i = 0; i < num_parts; ++i) {
      Part& part = parts_[i];
      const double last = part.last_speed.exchange(0, std::memory_order_relaxed);
      if (num_known == num_parts)
        part.speed += kWeight * (std::clamp(last * num_parts / sum, kSlowest, kFastest) - part.speed);
      total += part.speed;
    }
    return total;
  }

  void finish_blocks(std::int64_t count) {
    if (blocks_left_.fetch_sub(count, std::memory_order_seq_cst) != count) return;
    waiter_.notify();
  }

  // Rarely changed: every thread has these in its cache.
  const int max_parts_;
  const std::unique_ptr<Part[]> parts_;
  std::atomic<int> num_parts_{1};
  std::atomic<int> num_to_leave_{0};
  int block_shift_ = 0;  // of the number of rows per block, a power of two

  // Used by the caller's thread only.
  alignas(64) std::int64_t num_rows_ = 0;
  std::int64_t num_blocks_ = 0;
  std::int64_t num_alike_ = 0;  // batches

  alignas(64) std::atomic<std::int64_t> blocks_left_{0};
  Waiter waiter_;
};

}  // namespace envfleet::engine
