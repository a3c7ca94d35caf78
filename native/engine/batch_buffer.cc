#include "engine/batch_buffer.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "envfleet/spec.h"

namespace envfleet::engine {

namespace {

constexpr std::int64_t kAlignment = 64;  // a cache line: rows of two threads share few of them

std::int64_t row_bytes_of(const ef_array& array) {
  std::int64_t bytes = size_of(array.dtype);
  for (std::int32_t axis = 0; axis < array.ndim; ++axis) bytes *= array.shape[axis];
  return bytes;
}

}  // namespace

BatchLayout::BatchLayout(const ef_spec& spec, bool finals, std::int64_t capacity)
    : capacity_rows(capacity), num_obs(spec.num_obs), num_info(spec.num_info), with_finals(finals) {
  const auto add = [&](const ef_array* array, std::int32_t dtype) {
    const std::int64_t bytes = array != nullptr ? row_bytes_of(*array) : size_of(dtype);
    columns.push_back({array, dtype, bytes, total_bytes});
    total_bytes += (bytes * capacity + kAlignment - 1) / kAlignment * kAlignment;
  };
  const auto add_obs = [&] {
    for (std::int32_t k = 0; k < spec.num_obs; ++k) add(&spec.obs[k], spec.obs[k].dtype);
  };
  const auto add_info = [&] {
    for (std::int32_t k = 0; k < spec.num_info; ++k) add(&spec.info[k], spec.info[k].dtype);
  };
  add_obs();
  add(nullptr, EF_FLOAT64);  // reward
  add(nullptr, EF_BOOL);     // terminated
  add(nullptr, EF_BOOL);     // truncated
  add(nullptr, EF_INT32);    // env_id
  add(nullptr, EF_INT32);    // elapsed_step
  add_info();
  if (!finals) return;
  add_obs();
  add(nullptr, EF_INT32);  // final elapsed_step
  add_info();
}

void BatchBuffer::AlignedFree::operator()(void* memory) const { std::free(memory); }

BatchBuffer::BatchBuffer(const BatchLayout& layout, std::shared_ptr<BufferPool> home)
    : memory_(std::aligned_alloc(kAlignment, layout.total_bytes)),
      num_bytes_(layout.total_bytes),
      env_id_column_(layout.env_id()),
      home_(std::move(home)) {
  if (!memory_) throw std::bad_alloc();
  // Final rows of envs that did not end are never written: they are zero, not uninitialized memory.
  std::memset(memory_.get(), 0, layout.total_bytes);
  for (const ColumnLayout& column : layout.columns) columns_.push_back(static_cast<char*>(memory_.get()) + column.offset);
  rows_.obs = &columns_[layout.obs(0)];
  rows_.info = columns_.data() + layout.info(0);
  rows_.reward = static_cast<double*>(columns_[layout.reward()]);
  rows_.terminated = static_cast<std::uint8_t*>(columns_[layout.terminated()]);
  rows_.truncated = static_cast<std::uint8_t*>(columns_[layout.truncated()]);
  rows_.elapsed_step = static_cast<std::int32_t*>(columns_[layout.elapsed_step()]);
  if (layout.with_finals) {
    rows_.final_obs = &columns_[layout.final_obs(0)];
    rows_.final_elapsed_step = static_cast<std::int32_t*>(columns_[layout.final_elapsed_step()]);
    rows_.final_info = columns_.data() + layout.final_info(0);
  }
}

BufferPool::~BufferPool() {
  for (auto& slot : free_) delete slot.load(std::memory_order_relaxed);
}

BatchBuffer* BufferPool::acquire() {
  for (auto& slot : free_) {
    if (slot.load(std::memory_order_relaxed) == nullptr) continue;
    if (BatchBuffer* buffer = slot.exchange(nullptr, std::memory_order_acquire)) {
      buffer->home_ = shared_from_this();
      return buffer;
    }
  }
  num_allocated_.fetch_add(1, std::memory_order_relaxed);
  return new BatchBuffer(layout_, shared_from_this());
}

void BufferPool::release(BatchBuffer* buffer) {
  // Moved out first: this may be the last owner, and the pool must not die inside its own member function's loop.
  const std::shared_ptr<BufferPool> home = std::move(buffer->home_);
  for (auto& slot : home->free_) {
    BatchBuffer* empty = nullptr;
    if (slot.load(std::memory_order_relaxed) == nullptr &&
        slot.compare_exchange_strong(empty, buffer, std::memory_order_release, std::memory_order_relaxed)) {
      return;
    }
  }
  delete buffer;
}

}  // namespace envfleet::engine
