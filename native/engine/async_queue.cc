#include "async_queue.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "wait.h"

namespace envfleet::engine {

AsyncQueue::AsyncQueue(std::shared_ptr<BufferPool> buffers, std::int32_t num_envs, std::int32_t batch_size)
    : buffers_(std::move(buffers)), batch_size_(batch_size), open_(num_envs / batch_size + 2) {
  const auto capacity = std::bit_ceil(static_cast<std::uint64_t>(num_envs));
  ring_mask_ = static_cast<std::int64_t>(capacity) - 1;
  ring_.reset(new std::atomic<std::int32_t>[capacity]);
  for (OpenBatch& open : open_) open.buffer.reset(buffers_->acquire());
}

void AsyncQueue::post(const std::int32_t* entries, std::int64_t count) {
  const std::int64_t tail = tail_.load(std::memory_order_relaxed);
  for (std::int64_t i = 0; i < count; ++i) ring_[(tail + i) & ring_mask_].store(entries[i], std::memory_order_relaxed);
  tail_.store(tail + count, std::memory_order_release);
  posted_ += count;
}

std::int64_t AsyncQueue::num_waiting() const {
  return tail_.load(std::memory_order_relaxed) - head_.load(std::memory_order_relaxed);
}

std::int64_t AsyncQueue::claim(std::int32_t* entries, std::int64_t limit) {
  std::int64_t head = head_.load(std::memory_order_acquire);
  for (;;) {
    const std::int64_t available = std::min(limit, tail_.load(std::memory_order_acquire) - head);
    if (available <= 0) return 0;
    // Copied before the claim: afterwards a fast caller may come round the ring and write over it.
    std::int64_t count = 0;
    while (count < available) {
      entries[count] = ring_[(head + count) & ring_mask_].load(std::memory_order_relaxed);
      if ((entries[count] < 0) != (entries[0] < 0)) break;
      ++count;
    }
    if (head_.compare_exchange_weak(head, head + count, std::memory_order_acq_rel, std::memory_order_acquire)) return count;
  }
}

void AsyncQueue::deliver(const BatchBuffer& staging, const std::int32_t* env_ids, std::int64_t count) {
  const BatchLayout& layout = buffers_->layout();
  std::int64_t next = next_row_.fetch_add(count, std::memory_order_acq_rel);
  for (std::int64_t done = 0; done < count;) {
    OpenBatch& open = open_[next / batch_size_ % static_cast<std::int64_t>(open_.size())];
    const std::int64_t row = next % batch_size_;
    const std::int64_t chunk = std::min(count - done, batch_size_ - row);
    for (std::size_t i = 0; i < layout.columns.size(); ++i) {
      const std::int64_t bytes = layout.columns[i].row_bytes;
      std::memcpy(static_cast<char*>(open.buffer->column(i)) + row * bytes,
                  static_cast<const char*>(staging.column(i)) + done * bytes, chunk * bytes);
    }
    std::memcpy(open.buffer->env_ids() + row, env_ids + done, chunk * sizeof(std::int32_t));
    const std::int64_t filled = open.num_filled.fetch_add(chunk, std::memory_order_seq_cst) + chunk;
    if (filled == batch_size_ || draining_.load(std::memory_order_seq_cst)) {
      waiter_.tell();
    }
    done += chunk;
    next += chunk;
  }
}

BatchBuffer* AsyncQueue::take(std::int64_t timeout_ns, bool may_spin) {
  if (!waiter_.wait_until([&] { return is_ready(); }, timeout_ns, may_spin)) return nullptr;
  OpenBatch& open = open_[taken_ % open_.size()];
  BatchBuffer* fresh = buffers_->acquire();  // first: when it throws, the full batch can still be taken
  BatchBuffer* full = open.buffer.release();
  open.buffer.reset(fresh);
  open.num_filled.store(0, std::memory_order_seq_cst);
  ++taken_;
  full->num_rows = batch_size_;
  full->is_whole = false;
  return full;
}

bool AsyncQueue::drain(std::int64_t timeout_ns) {
  const auto all_delivered = [&] {
    std::int64_t filled = taken_ * batch_size_;
    for (const OpenBatch& open : open_) filled += open.num_filled.load(std::memory_order_seq_cst);
    return filled == posted_;
  };
  draining_.store(true, std::memory_order_seq_cst);
  const bool drained = waiter_.wait_until(all_delivered, timeout_ns, false);
  draining_.store(false, std::memory_order_seq_cst);
  if (!drained) return false;
  for (OpenBatch& open : open_) open.num_filled.store(0, std::memory_order_seq_cst);
  next_row_.store(0, std::memory_order_seq_cst);
  taken_ = 0;
  posted_ = 0;
  return true;
}

}  // namespace envfleet::engine
