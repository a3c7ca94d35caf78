// BatchBuffer: the memory of one batch, and BufferPool, which recycles it.
//
// A buffer holds every column of a batch (observations, reward, flags, ids, infos) in one allocation. It is returned as
// numpy arrays that share its ownership; when the last of them dies it goes back to the pool, so nothing is allocated in
// the steady state.
//
// Thread safety: acquire() from one thread, release() from any (a garbage collector frees arrays wherever it runs).
// Lock-free between those: the free slots are atomic pointers.
// Invariant: a buffer has exactly one owner: a free slot of the pool, the engine, or arrays.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/driver.h"
#include "envfleet/abi.h"

namespace envfleet::engine {

// One column: its position in the buffer and its shape without the row axis.
struct ColumnLayout {
  const ef_array* array = nullptr;  // null for reward, flags, ids
  std::int32_t dtype = 0;
  std::int64_t row_bytes = 0;
  std::int64_t offset = 0;
};

// The columns of a batch, in the order in which they are stored.
struct BatchLayout {
  BatchLayout(const ef_spec& spec, bool with_finals, std::int64_t capacity_rows);

  std::int64_t capacity_rows;
  std::int64_t num_obs, num_info;
  bool with_finals;
  std::vector<ColumnLayout> columns;
  std::int64_t total_bytes = 0;

  // The bytes of one observation.
  std::int64_t obs_bytes() const {
    std::int64_t bytes = 0;
    for (std::int64_t k = 0; k < num_obs; ++k) bytes += columns[obs(k)].row_bytes;
    return bytes;
  }

  // Indices into columns.
  std::int64_t obs(std::int64_t k) const { return k; }
  std::int64_t reward() const { return num_obs; }
  std::int64_t terminated() const { return num_obs + 1; }
  std::int64_t truncated() const { return num_obs + 2; }
  std::int64_t env_id() const { return num_obs + 3; }
  std::int64_t elapsed_step() const { return num_obs + 4; }
  std::int64_t info(std::int64_t k) const { return num_obs + 5 + k; }
  std::int64_t final_obs(std::int64_t k) const { return num_obs + 5 + num_info + k; }
  std::int64_t final_elapsed_step() const { return 2 * num_obs + 5 + num_info; }
  std::int64_t final_info(std::int64_t k) const { return 2 * num_obs + 6 + num_info + k; }
};

class BufferPool;

class BatchBuffer {
 public:
  BatchBuffer(const BatchLayout& layout, std::shared_ptr<BufferPool> home);
  BatchBuffer(const BatchBuffer&) = delete;
  BatchBuffer& operator=(const BatchBuffer&) = delete;

  void* column(std::int64_t index) const { return columns_[index]; }
  std::int32_t* env_ids() const { return static_cast<std::int32_t*>(columns_[env_id_column_]); }
  // Row pointers for the range functions. The engine sets actions, ids, options and the fault callback.
  ef_rows& rows() { return rows_; }

  void* data() const { return memory_.get(); }
  std::int64_t num_bytes() const { return num_bytes_; }
  // Page-locks the memory for as long as it exists; false where that cannot be done. By the buffer's one holder.
  bool lock_pages() { return page_lock_.lock(memory_.get(), static_cast<std::size_t>(num_bytes_)); }

  // The number of rows of the current batch, and whether they are envs 0, 1, 2 ...
  std::int64_t num_rows = 0;
  bool is_whole = false;

 private:
  friend class BufferPool;
  struct AlignedFree {
    void operator()(void* memory) const;
  };

  std::unique_ptr<void, AlignedFree> memory_;
  std::int64_t num_bytes_;
  cuda::PageLock page_lock_;  // after the memory: unlocked before it is freed
  std::vector<void*> columns_;
  std::int64_t env_id_column_;
  // Apart from what changes with every batch: all threads read the rows.
  alignas(64) ef_rows rows_{};
  alignas(64) std::shared_ptr<BufferPool> home_;  // set while the buffer is in use, so that a pool outlives its arrays
};

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  explicit BufferPool(BatchLayout layout) : layout_(std::move(layout)) {}
  ~BufferPool();

  BatchBuffer* acquire();
  static void release(BatchBuffer* buffer);
  const BatchLayout& layout() const { return layout_; }
  std::int64_t num_allocated() const { return num_allocated_.load(std::memory_order_relaxed); }

 private:
  const BatchLayout layout_;
  // Keeping more would hold memory that only a burst needed.
  std::array<std::atomic<BatchBuffer*>, 16> free_{};
  std::atomic<std::int64_t> num_allocated_{0};
};

}  // namespace envfleet::engine
