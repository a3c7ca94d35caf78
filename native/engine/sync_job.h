// SyncJob: one batch whose row order is fixed, shared between the caller and the thread pool.
//
// The rows are cut into blocks, the blocks into one contiguous share a thread, so that an
// env stays in the same core's cache from step to step; a thread that is done with its own
// share helps with the others', so that a late or slow thread holds up nobody.
//
// Thread safety: publish(), cancel() and the waiting from the caller's thread; run_blocks() from any.
// Lock-free between those. Invariant: a job's fields change only while no block of it is
// unclaimed or unfinished, so whoever has claimed a block may read them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "wait.h"

namespace envfleet::engine {

class SyncJob {
 public:
  explicit SyncJob(int max_shares) : max_shares_(max_shares), shares_(new Share[max_shares]) {}

  void publish(std::int64_t num_rows, std::int64_t block_rows, int num_shares) {
    num_rows_ = num_rows;
    block_rows_ = block_rows;
    const std::int64_t num_blocks = (num_rows + block_rows - 1) / block_rows;
    num_shares = num_shares < max_shares_ ? num_shares : max_shares_;
    num_shares_.store(num_shares, std::memory_order_relaxed);
    blocks_left_.store(num_blocks, std::memory_order_relaxed);
    for (int i = 0; i < num_shares; ++i) {
      shares_[i].first_block = num_blocks * i / num_shares;
      const std::int64_t count = num_blocks * (i + 1) / num_shares - shares_[i].first_block;
      shares_[i].unclaimed.store(count, std::memory_order_release);
    }
  }

  // Runs blocks, its own share's first, until none is unclaimed. True: it ran one.
  template <class Run>
  bool run_blocks(int own_share, Run&& run) {
    std::int64_t num_run = 0;
    const int num_shares = num_shares_.load(std::memory_order_relaxed);
    for (int i = 0; i < num_shares; ++i) {
      Share& share = shares_[(own_share + i) % num_shares];
      std::int64_t unclaimed = share.unclaimed.load(std::memory_order_relaxed);
      while (unclaimed > 0) {
        // Acquire: the claim is what makes publish()'s fields visible here.
        if (!share.unclaimed.compare_exchange_weak(unclaimed, unclaimed - 1, std::memory_order_acquire,
                                                   std::memory_order_relaxed)) {
          continue;
        }
        const std::int64_t begin = (share.first_block + unclaimed - 1) * block_rows_;
        const std::int64_t end = begin + block_rows_ < num_rows_ ? begin + block_rows_ : num_rows_;
        run(begin, end);
        ++num_run;
        unclaimed = share.unclaimed.load(std::memory_order_relaxed);
      }
    }
    // Once, and not block by block: all threads change this counter.
    if (num_run > 0) finish_blocks(num_run);
    return num_run > 0;
  }

  // Takes back what nobody has claimed: otherwise a thread told to leave would first run the rest of
  // the batch. The rows are worth nothing then; they count as finished so that no wait() hangs on them.
  void cancel() {
    std::int64_t taken_back = 0;
    for (int i = 0; i < max_shares_; ++i) taken_back += shares_[i].unclaimed.exchange(0, std::memory_order_relaxed);
    if (taken_back > 0) finish_blocks(taken_back);
  }

  bool is_done() const { return blocks_left_.load(std::memory_order_seq_cst) == 0; }

  // Waits until all blocks are finished; false when timeout_ns (negative: none) ran out.
  bool wait(std::int64_t timeout_ns, bool may_spin) {
    return waiter_.wait_until([&] { return is_done(); }, timeout_ns, may_spin);
  }

 private:
  struct Share {
    alignas(64) std::atomic<std::int64_t> unclaimed{0};
    std::int64_t first_block = 0;
  };

  void finish_blocks(std::int64_t count) {
    if (blocks_left_.fetch_sub(count, std::memory_order_seq_cst) != count) return;
    waiter_.tell();
  }

  const int max_shares_;
  std::atomic<int> num_shares_{1};
  std::unique_ptr<Share[]> shares_;
  std::int64_t num_rows_ = 0;
  std::int64_t block_rows_ = 1;
  alignas(64) std::atomic<std::int64_t> blocks_left_{0};
  Waiter waiter_;
};

}  // namespace envfleet::engine
