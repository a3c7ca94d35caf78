#include "engine/async_queue.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/split.h"
#include "engine/wait.h"

namespace envfleet::engine {

namespace {

constexpr int kMaxRings = 1 << 12;

}  // namespace

AsyncQueue::AsyncQueue(std::shared_ptr<BufferPool> buffers, std::int32_t num_envs, std::int32_t batch_size, int num_workers)
    : buffers_(std::move(buffers)),
      batch_size_(batch_size),
      open_(num_envs / batch_size + 2),
      rings_(std::clamp(num_workers, 1, kMaxRings)) {
  const auto num_rings = static_cast<std::int64_t>(rings_.size());
  std::vector<std::int64_t> ring_sizes(num_rings, 0);
  for (std::int64_t env_id = 0; env_id < num_envs; ++env_id) {
    const std::int64_t ring = part_of(num_envs, num_rings, env_id);
    ring_of_.push_back(static_cast<std::uint16_t>(ring));
    ring_sizes[ring] += 1;
  }
  for (std::int64_t i = 0; i < num_rings; ++i) {
    const auto capacity = std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(ring_sizes[i], 1)));
    rings_[i].mask = static_cast<std::int64_t>(capacity) - 1;
    rings_[i].entries.reset(new std::atomic<std::int32_t>[capacity]);
  }
  for (OpenBatch& open : open_) open.buffer.reset(buffers_->acquire());
}

void AsyncQueue::post(const std::int32_t* entries, std::int64_t count) {
  const auto ring_of = [&](std::int32_t entry) { return ring_of_[entry < 0 ? ~entry : entry]; };
  for (std::int64_t i = 0; i < count;) {
    const std::uint16_t index = ring_of(entries[i]);
    Ring& ring = rings_[index];
    // Local: through memory, each entry would wait for the one before it.
    std::atomic<std::int32_t>* const ring_entries = ring.entries.get();
    std::int64_t posted = ring.posted;
    for (; i < count && ring_of(entries[i]) == index; ++i) {
      ring_entries[posted++ & ring.mask].store(entries[i], std::memory_order_relaxed);
    }
    ring.posted = posted;
  }
  // Published at the end: otherwise a worker would take the entries one by one as they come in.
  for (Ring& ring : rings_) {
    if (ring.tail.load(std::memory_order_relaxed) != ring.posted) ring.tail.store(ring.posted, std::memory_order_release);
  }
  posted_ += count;
}

std::int64_t AsyncQueue::num_waiting() const {
  std::int64_t waiting = 0;
  for (const Ring& ring : rings_) {
    waiting += ring.tail.load(std::memory_order_relaxed) - ring.head.load(std::memory_order_relaxed);
  }
  return waiting;
}

std::int64_t AsyncQueue::claim(int worker_index, std::int32_t* entries, std::int64_t limit) {
  for (std::size_t i = 0; i < rings_.size(); ++i) {
    const std::int64_t count = claim_from(rings_[(worker_index + i) % rings_.size()], entries, limit);
    if (count > 0) return count;
  }
  return 0;
}

std::int64_t AsyncQueue::claim_from(Ring& ring, std::int32_t* entries, std::int64_t limit) {
  std::int64_t head = ring.head.load(std::memory_order_acquire);
  for (;;) {
    const std::int64_t available = std::min(limit, ring.tail.load(std::memory_order_acquire) - head);
    if (available <= 0) return 0;
    // Copied before the claim: afterwards a fast caller may wrap around the ring and overwrite it.
    std::int64_t count = 0;
    while (count < available) {
      entries[count] = ring.entries[(head + count) & ring.mask].load(std::memory_order_relaxed);
      if ((entries[count] < 0) != (entries[0] < 0)) break;
      ++count;
    }
    if (ring.head.compare_exchange_weak(head, head + count, std::memory_order_acq_rel, std::memory_order_acquire))
      return count;
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
      waiter_.notify();
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
