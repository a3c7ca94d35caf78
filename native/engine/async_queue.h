// AsyncQueue: passes requests from the caller to the workers, and finished rows back in order of completion.
//
//   post() -> a ring of env ids per worker -> claim() by a worker -> its staging rows
//          -> deliver() into the next free rows of the open batches -> take()
//
// An env always goes into the ring of the same worker, which then has the env's memory in its core's cache. A worker whose
// own ring is empty takes from the others.
//
// A worker steps into its own staging rows and reserves batch rows only when they are finished: a slow env that reserved
// its row at the start would hold up every row after it.
//
// Thread safety: post(), take() and drain() from the caller's thread; claim() and deliver() from any. Lock-free between
// those.
// Invariant: an env is in the queue at most once, so num_envs entries are enough, and the batches that were not taken yet
// fit into the ring of open batches.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/batch_buffer.h"
#include "engine/wait.h"

namespace envfleet::engine {

class AsyncQueue {
 public:
  AsyncQueue(std::shared_ptr<BufferPool> buffers, std::int32_t num_envs, std::int32_t batch_size, int num_workers);

  // An entry is an env id, or its complement (~id) for a reset.
  void post(const std::int32_t* entries, std::int64_t count);

  // Claims up to `limit` entries of one kind (all steps or all resets) and returns their number; 0 if none is waiting.
  std::int64_t claim(int worker_index, std::int32_t* entries, std::int64_t limit);
  std::int64_t num_waiting() const;

  void deliver(const BatchBuffer& staging, const std::int32_t* env_ids, std::int64_t count);

  // Returns the oldest batch once it is full, or null after timeout_ns (negative: no limit).
  BatchBuffer* take(std::int64_t timeout_ns, bool may_spin);

  // Waits for everything that was posted and drops it. Returns false after timeout_ns.
  bool drain(std::int64_t timeout_ns);

 private:
  struct Release {
    void operator()(BatchBuffer* buffer) const { BufferPool::release(buffer); }
  };
  struct OpenBatch {
    alignas(64) std::atomic<std::int64_t> num_filled{0};
    // Owned: a constructor that runs out of memory halfway would leak the buffers, and their pool.
    std::unique_ptr<BatchBuffer, Release> buffer;
  };

  bool is_ready() const { return open_[taken_ % open_.size()].num_filled.load(std::memory_order_seq_cst) == batch_size_; }

  const std::shared_ptr<BufferPool> buffers_;
  const std::int64_t batch_size_;
  std::vector<OpenBatch> open_;

  struct Ring {
    std::unique_ptr<std::atomic<std::int32_t>[]> entries;
    std::int64_t mask = 0;
    alignas(64) std::atomic<std::int64_t> head{0};  // next to claim
    alignas(64) std::atomic<std::int64_t> tail{0};  // next to post
    std::int64_t posted = 0;                        // used by the caller: the value of tail when post() ends
  };
  static std::int64_t claim_from(Ring& ring, std::int32_t* entries, std::int64_t limit);

  std::vector<Ring> rings_;
  std::vector<std::uint16_t> ring_of_;                 // by env
  alignas(64) std::atomic<std::int64_t> next_row_{0};  // next row of all batches, counted from the first
  Waiter waiter_;
  std::atomic<bool> draining_{false};  // then every delivery wakes the caller, not only full batches

  // Used by the caller's thread only.
  std::int64_t taken_ = 0;   // batches taken
  std::int64_t posted_ = 0;  // entries posted since the last drain
};

}  // namespace envfleet::engine
