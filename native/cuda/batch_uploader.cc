#include "cuda/batch_uploader.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

namespace envfleet::cuda {

namespace {

constexpr std::int64_t kUploadAlignment = 64;  // of arrays in device memory, as in the engine's buffers
constexpr std::int64_t kPageBytes = 4096;      // two page-locked ranges may not share a page
constexpr std::int64_t kNotPlaced = -1;

std::int64_t rounded_up(std::int64_t num_bytes, std::int64_t unit = kUploadAlignment) {
  return (num_bytes + unit - 1) / unit * unit;
}

}  // namespace

void UploadPlan::make(const std::vector<UploadSource>& sources) {
  if (staging_ != nullptr) give_back(std::move(staging_));  // of a plan that was never started
  num_bytes_ = 0;
  copies_.clear();
  reads_shared_memory_ = false;
  offsets_.assign(sources.size(), kNotPlaced);
  place_block(sources);
  place_direct(sources);
  place_staged(sources);
}

// The first block that is found. From the first array that is wanted to the last: what lies between them comes along.
void UploadPlan::place_block(const std::vector<UploadSource>& sources) {
  const void* block = nullptr;
  const char *begin = nullptr, *end = nullptr;
  for (const UploadSource& source : sources) {
    if (source.block == nullptr || (block != nullptr && source.block != block)) continue;
    begin = block == nullptr ? source.data : std::min(begin, source.data);
    end = block == nullptr ? source.data + source.num_bytes : std::max(end, source.data + source.num_bytes);
    block = source.block;
  }
  if (block == nullptr) return;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].block == block) offsets_[i] = sources[i].data - begin;
  }
  copies_.push_back({0, begin, static_cast<std::size_t>(end - begin)});
  num_bytes_ = rounded_up(end - begin);
}

void UploadPlan::place_direct(const std::vector<UploadSource>& sources) {
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const UploadSource& source = sources[i];
    if (offsets_[i] != kNotPlaced || !source.is_locked || source.num_bytes < kDirectUploadBytes) continue;
    offsets_[i] = num_bytes_;
    copies_.push_back({static_cast<std::uintptr_t>(num_bytes_), source.data, static_cast<std::size_t>(source.num_bytes)});
    reads_shared_memory_ |= source.is_shared;
    num_bytes_ += rounded_up(source.num_bytes);
  }
}

void UploadPlan::place_staged(const std::vector<UploadSource>& sources) {
  std::int64_t staged_bytes = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (offsets_[i] == kNotPlaced) staged_bytes += rounded_up(sources[i].num_bytes);
  }
  if (staged_bytes == 0) {  // nothing is left, or arrays without rows
    for (std::int64_t& offset : offsets_) offset = std::max<std::int64_t>(offset, 0);
    return;
  }
  staging_ = find_staging(staged_bytes);
  std::int64_t position = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (offsets_[i] != kNotPlaced) continue;
    std::memcpy(staging_->data.get() + position, sources[i].data, static_cast<std::size_t>(sources[i].num_bytes));
    offsets_[i] = num_bytes_ + position;
    position += rounded_up(sources[i].num_bytes);
  }
  copies_.push_back({static_cast<std::uintptr_t>(num_bytes_), staging_->data.get(), static_cast<std::size_t>(position)});
  num_bytes_ += position;
}

std::unique_ptr<UploadPlan::Staging> UploadPlan::find_staging(std::int64_t num_bytes) {
  while (!free_.empty()) {
    std::unique_ptr<Staging> found = std::move(free_.back());
    free_.pop_back();
    if (found->num_bytes >= num_bytes) return found;
  }
  const auto size = static_cast<std::size_t>(rounded_up(num_bytes, kPageBytes));
  std::unique_ptr<Staging> made(new Staging{
      {static_cast<char*>(std::aligned_alloc(kPageBytes, size)), &std::free}, static_cast<std::int64_t>(size), {}});
  if (made->data == nullptr) throw std::bad_alloc();
  // Where the driver refuses, the copy is slower and right all the same.
  made->page_lock.lock(made->data.get(), size);
  return made;
}

const UploadPlan& BatchUploader::plan(const std::vector<UploadSource>& sources) {
  release_done();
  plan_.make(sources);
  return plan_;
}

void BatchUploader::start(void* user_stream, std::uintptr_t target, bool on_user_stream, std::shared_ptr<void> owner) {
  std::vector<UploadStream::Copy> copies = plan_.copies();
  for (UploadStream::Copy& copy : copies) copy.target += target;
  last_ = stream_.start(user_stream, copies, on_user_stream);
  reading_.push_back({last_, std::move(owner), plan_.take_staging()});
  if (plan_.reads_shared_memory()) last_of_shared_memory_ = last_;
}

void BatchUploader::release_done() {
  const std::int64_t num_done = stream_.num_done();
  while (!reading_.empty() && reading_.front().number <= num_done) {
    Reading done = std::move(reading_.front());
    reading_.pop_front();
    if (done.staging != nullptr) plan_.give_back(std::move(done.staging));
  }
}

}  // namespace envfleet::cuda
