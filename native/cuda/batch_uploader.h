// BatchUploader: copies the arrays of batches to device memory, each batch in as few copies as its memory allows:
// - arrays in one page-locked block, such as the columns of a native batch: one copy of the part of it that holds them;
// - other large arrays in page-locked memory: one copy each;
// - everything else: one copy of a page-locked staging buffer.
//
// Thread safety: one thread at a time.
// Invariant: what a copy reads is kept until release_done() finds that the copy is done.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#include "cuda/driver.h"

namespace envfleet::cuda {

// Smaller arrays are gathered in the staging buffer: a copy of their own would cost more than their bytes.
inline constexpr std::int64_t kDirectUploadBytes = 64 * 1024;

// An array to upload, contiguous.
struct UploadSource {
  const char* data = nullptr;
  std::int64_t num_bytes = 0;
  const void* block = nullptr;  // the page-locked block that it is a part of; null: none
  bool is_locked = false;       // in page-locked memory of its own
  bool is_shared = false;       // where workers write the next rows
};

// Where arrays come to lie in device memory, and the copies that bring them there.
class UploadPlan {
 public:
  // Page-locked memory in which small arrays are gathered for one copy.
  struct Staging {
    std::unique_ptr<char, decltype(&std::free)> data;
    std::int64_t num_bytes;
    PageLock page_lock;  // after the data: unlocked before that is freed
  };

  // Reads the arrays that are staged; the others are read by the copies.
  void make(const std::vector<UploadSource>& sources);

  std::int64_t num_bytes() const { return num_bytes_; }
  const std::vector<std::int64_t>& offsets() const { return offsets_; }      // by source
  const std::vector<UploadStream::Copy>& copies() const { return copies_; }  // targets are offsets
  bool reads_shared_memory() const { return reads_shared_memory_; }
  // What the copies of the plan read beside the sources; to be given back when they are done. Null: nothing.
  std::unique_ptr<Staging> take_staging() { return std::move(staging_); }
  void give_back(std::unique_ptr<Staging> staging) { free_.push_back(std::move(staging)); }

 private:
  void place_block(const std::vector<UploadSource>& sources);
  void place_direct(const std::vector<UploadSource>& sources);
  void place_staged(const std::vector<UploadSource>& sources);
  std::unique_ptr<Staging> find_staging(std::int64_t num_bytes);

  std::int64_t num_bytes_ = 0;
  std::vector<std::int64_t> offsets_;
  std::vector<UploadStream::Copy> copies_;
  bool reads_shared_memory_ = false;
  std::unique_ptr<Staging> staging_;
  std::vector<std::unique_ptr<Staging>> free_;
};

class BatchUploader {
 public:
  const UploadPlan& plan(const std::vector<UploadSource>& sources);
  // Starts the copies of the last plan, once. owner: what keeps the memory of its sources.
  void start(void* user_stream, std::uintptr_t target, bool on_user_stream, std::shared_ptr<void> owner);

  // The number of the last upload, and of the last that reads where workers write; 0: none.
  std::int64_t last() const { return last_; }
  std::int64_t last_of_shared_memory() const { return last_of_shared_memory_; }
  bool is_done(std::int64_t number) { return number <= stream_.num_done(); }
  void wait(std::int64_t number) { stream_.wait(number); }
  // Lets go of what copies have read that are done, so that the next batches use it while it is cached.
  void release_done();

  UploadStream& stream() { return stream_; }

 private:
  struct Reading {
    std::int64_t number;
    std::shared_ptr<void> owner;
    std::unique_ptr<UploadPlan::Staging> staging;
  };

  UploadPlan plan_;
  std::deque<Reading> reading_;
  std::int64_t last_ = 0, last_of_shared_memory_ = 0;
  // Last: destroyed first, which waits for the copies.
  UploadStream stream_;
};

}  // namespace envfleet::cuda
