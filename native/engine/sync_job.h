// SyncJob: one batch whose row order is fixed, shared between the caller and the thread pool.
//
// The rows are divided into blocks, and the blocks into one contiguous part per thread, so that an env stays in the same
// core's cache from step to step. A thread that has finished its own part helps with the others', so that a late or slow
// thread does not hold up the batch.
//
// Thread safety: publish(), cancel() and the waiting from the caller's thread; run_blocks() from any.
// Lock-free between those. Invariant: a job's fields change only while no block of it is
// unclaimed or unfinished, so a thread that has claimed a block may read them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "engine/split.h"
#include "engine/wait.h"

namespace envfleet::engine {

class SyncJob {
 public:
  explicit SyncJob(int max_parts) : max_parts_(max_parts), parts_(new Part[max_parts]) {}

  void publish(std::int64_t num_rows, std::int64_t block_rows, int num_parts) {
    num_rows_ = num_rows;
    block_rows_ = block_rows;
    const std::int64_t num_blocks = (num_rows + block_rows - 1) / block_rows;
    num_parts = num_parts < max_parts_ ? num_parts : max_parts_;
    num_parts_.store(num_parts, std::memory_order_relaxed);
    blocks_left_.store(num_blocks, std::memory_order_relaxed);
    for (int i = 0; i < num_parts; ++i) {
      parts_[i].first_block = first_of_part(num_blocks, num_parts, i);
      const std::int64_t count = first_of_part(num_blocks, num_parts, i + 1) - parts_[i].first_block;
      parts_[i].unclaimed.store(count, std::memory_order_release);
    }
  }

  // Runs blocks, those of its own part first, until none is unclaimed. Returns true if it ran at least one.
  template <class Run>
  bool run_blocks(int own_part, Run&& run) {
    std::int64_t num_run = 0;
    const int num_parts = num_parts_.load(std::memory_order_relaxed);
    for (int i = 0; i < num_parts; ++i) {
      Part& part = parts_[(own_part + i) % num_parts];
      std::int64_t unclaimed = part.unclaimed.load(std::memory_order_relaxed);
      while (unclaimed > 0) {
        // Acquire: the claim is what makes publish()'s fields visible here.
        if (!part.unclaimed.compare_exchange_weak(unclaimed, unclaimed - 1, std::memory_order_acquire,
                                                  std::memory_order_relaxed)) {
          continue;
        }
        const std::int64_t begin = (part.first_block + unclaimed - 1) * block_rows_;
        const std::int64_t end = begin + block_rows_ < num_rows_ ? begin + block_rows_ : num_rows_;
        run(begin, end);
        ++num_run;
        unclaimed = part.unclaimed.load(std::memory_order_relaxed);
      }
    }
    // Once and not per block: all threads change this counter.
    if (num_run > 0) finish_blocks(num_run);
    return num_run > 0;
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
  struct Part {
    alignas(64) std::atomic<std::int64_t> unclaimed{0};
    std::int64_t first_block = 0;
  };

  void finish_blocks(std::int64_t count) {
    if (blocks_left_.fetch_sub(count, std::memory_order_seq_cst) != count) return;
    waiter_.notify();
  }

  const int max_parts_;
  std::atomic<int> num_parts_{1};
  std::unique_ptr<Part[]> parts_;
  std::int64_t num_rows_ = 0;
  std::int64_t block_rows_ = 1;
  alignas(64) std::atomic<std::int64_t> blocks_left_{0};
  Waiter waiter_;
};

}  // namespace envfleet::engine
