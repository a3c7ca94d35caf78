// UploadPlan: where the arrays of a batch come to lie in device memory, and which copies bring them there.
#include <cstring>
#include <string>
#include <vector>

#include "cuda/batch_uploader.h"
#include "tests/check.h"

namespace {

using envfleet::cuda::kDirectUploadBytes;
using envfleet::cuda::UploadPlan;
using envfleet::cuda::UploadSource;
using envfleet::cuda::UploadStream;

// What the copies of the plan bring to device memory.
std::vector<char> upload(const UploadPlan& plan) {
  std::vector<char> device(static_cast<std::size_t>(plan.num_bytes()), '?');
  for (const UploadStream::Copy& copy : plan.copies()) {
    CHECK(copy.target + copy.num_bytes <= device.size());
    std::memcpy(device.data() + copy.target, copy.source, copy.num_bytes);
  }
  return device;
}

void check_uploaded(const UploadPlan& plan, const std::vector<UploadSource>& sources) {
  const std::vector<char> device = upload(plan);
  CHECK_EQUAL(plan.offsets().size(), sources.size());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const std::int64_t offset = plan.offsets()[i];
    CHECK(offset >= 0);
    CHECK(std::memcmp(device.data() + offset, sources[i].data, static_cast<std::size_t>(sources[i].num_bytes)) == 0);
  }
}

std::string text(std::int64_t num_bytes, char first) {
  std::string made(static_cast<std::size_t>(num_bytes), ' ');
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<char>(first + i % 23);
  return made;
}

UploadSource source(const std::string& data) { return {data.data(), static_cast<std::int64_t>(data.size())}; }

}  // namespace

TEST(small_arrays_are_gathered_in_one_copy) {
  const std::string one = text(100, 'a'), other = text(7, 'A'), locked = text(kDirectUploadBytes - 1, '0');
  std::vector<UploadSource> sources = {source(one), source(other), source(locked)};
  sources[2].is_locked = true;
  UploadPlan plan;
  plan.make(sources);
  CHECK_EQUAL(plan.copies().size(), 1u);
  CHECK(plan.offsets() == (std::vector<std::int64_t>{0, 128, 192}));
  check_uploaded(plan, sources);
}

TEST(a_block_is_one_copy_of_what_is_wanted) {
  const std::string block = text(1000, 'a'), apart = text(64, 'A');
  const auto part = [&](std::int64_t begin, std::int64_t num_bytes) {
    return UploadSource{block.data() + begin, num_bytes, block.data()};
  };
  const std::vector<UploadSource> sources = {part(320, 80), source(apart), part(128, 64)};
  UploadPlan plan;
  plan.make(sources);
  CHECK_EQUAL(plan.copies().size(), 2u);
  CHECK_EQUAL(plan.copies()[0].num_bytes, 272u);
  CHECK(plan.offsets() == (std::vector<std::int64_t>{192, 320, 0}));
  CHECK(!plan.reads_shared_memory());
  check_uploaded(plan, sources);
}

TEST(large_arrays_are_copied_from_where_they_are) {
  const std::string recycled = text(kDirectUploadBytes, 'a'), shared = text(kDirectUploadBytes + 1, 'b');
  const std::string pageable = text(2 * kDirectUploadBytes, 'c');
  std::vector<UploadSource> sources = {source(recycled), source(pageable), source(shared)};
  sources[0].is_locked = true;
  UploadPlan plan;
  plan.make(sources);
  CHECK_EQUAL(plan.copies().size(), 2u);
  CHECK(plan.copies()[0].source == recycled.data());
  CHECK(!plan.reads_shared_memory());
  check_uploaded(plan, sources);
  sources[2].is_locked = sources[2].is_shared = true;
  plan.make(sources);
  CHECK_EQUAL(plan.copies().size(), 3u);
  CHECK(plan.copies()[1].source == shared.data());
  CHECK(plan.reads_shared_memory());
  check_uploaded(plan, sources);
}

TEST(arrays_without_rows) {
  UploadPlan plan;
  plan.make({UploadSource{}, UploadSource{}});
  CHECK(plan.copies().empty());
  CHECK_EQUAL(plan.num_bytes(), 0);
  CHECK(plan.offsets() == (std::vector<std::int64_t>{0, 0}));
  CHECK(plan.take_staging() == nullptr);
}

TEST(staging_memory_is_used_again_once_it_is_given_back) {
  const std::string one = text(100, 'a'), other = text(100, 'A');
  UploadPlan plan;
  plan.make({source(one)});
  const void* first = plan.copies()[0].source;
  plan.make({source(other)});  // the first was never started
  CHECK(plan.copies()[0].source == first);
  auto staging = plan.take_staging();
  plan.make({source(one)});  // while a copy reads the first
  CHECK(plan.copies()[0].source != first);
  check_uploaded(plan, {source(one)});
  plan.give_back(std::move(staging));
  plan.make({source(other)});
  check_uploaded(plan, {source(other)});
}
