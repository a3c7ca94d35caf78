// SyncJob: how a batch is divided among threads. Run by one thread that plays them all, so that every result is exact.
#include "engine/sync_job.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "tests/check.h"

using envfleet::engine::SyncJob;

namespace {

constexpr int kMaxParts = 17;

// Marks the rows that were run; each may be run once.
struct Rows {
  explicit Rows(std::int64_t num_rows) : num_runs(num_rows, 0) {}

  void run(std::int64_t begin, std::int64_t end) {
    CHECK(begin < end);
    CHECK(end <= static_cast<std::int64_t>(num_runs.size()));
    for (std::int64_t row = begin; row < end; ++row) ++num_runs[row];
  }
  bool all_once() const {
    return std::all_of(num_runs.begin(), num_runs.end(), [](int count) { return count == 1; });
  }
  std::int64_t num_run() const {
    return std::count_if(num_runs.begin(), num_runs.end(), [](int count) { return count > 0; });
  }

  std::vector<int> num_runs;
};

}  // namespace

TEST(every_row_is_run_once) {
  std::minstd_rand random(1);
  SyncJob job(kMaxParts);
  for (int i = 0; i < 3000; ++i) {
    const std::int64_t num_rows = 1 + random() % (random() % 4 == 0 ? 3000 : 100);
    const auto max_block_rows = static_cast<std::int64_t>(random() % 200);
    const int num_parts = 1 + static_cast<int>(random() % kMaxParts);
    const int num_to_leave = static_cast<int>(random() % 3);
    // Several times: the parts change with the speeds.
    for (int batch = 0; batch < 20; ++batch) {
      job.publish(num_rows, max_block_rows, num_parts, num_to_leave);
      Rows rows(num_rows);
      for (int part = 0; part < kMaxParts; ++part) {
        const bool ran = job.run_blocks(part, [&](std::int64_t begin, std::int64_t end) { rows.run(begin, end); });
        if (ran) job.note_speed(part, 1 + random() % 1000, random() % 1000);
      }
      // Each thread has run its own part, so nothing is left.
      CHECK(job.is_done());
      CHECK(rows.all_once());
    }
  }
}

TEST(parts_begin_where_lanes_do) {
  SyncJob job(kMaxParts);
  for (const int num_parts : {1, 2, 3, 5, 7, 12, 16}) {
    job.publish(1024, 70, num_parts);
    std::vector<std::int64_t> sizes;
    for (int part = 0; part < num_parts; ++part) {
      job.run_blocks(part, [&](std::int64_t begin, std::int64_t end) {
        CHECK_EQUAL(begin % SyncJob::kRowsAtOnce, 0);
        CHECK_EQUAL(end % SyncJob::kRowsAtOnce, 0);
        CHECK(end - begin <= 64);  // the power of two below 70
      });
    }
    const std::vector<std::int64_t> borders = job.borders();
    for (int part = 0; part < num_parts; ++part) sizes.push_back(borders[part + 1] - borders[part]);
    const auto [smallest, largest] = std::minmax_element(sizes.begin(), sizes.end());
    CHECK(*largest - *smallest <= SyncJob::kRowsAtOnce);
  }
}

TEST(a_slow_thread_gets_fewer_rows) {
  SyncJob job(4);
  const double speeds[] = {1.0, 0.8, 1.0, 1.2};
  for (int batch = 0; batch < 1000; ++batch) {
    job.publish(40'000, 64, 4);
    for (int part = 0; part < 4; ++part) {
      job.run_blocks(part, [](std::int64_t, std::int64_t) {});
      job.note_speed(part, 1'000'000, static_cast<std::int64_t>(1'000'000 / speeds[part]));
    }
  }
  const std::vector<std::int64_t> borders = job.borders();
  for (int part = 0; part < 4; ++part) {
    const auto expected = static_cast<std::int64_t>(40'000 * speeds[part] / 4);
    CHECK(std::abs(borders[part + 1] - borders[part] - expected) <= 2 * SyncJob::kRowsAtOnce);
  }
}

TEST(a_thread_that_lost_its_core_once_keeps_most_of_its_rows) {
  SyncJob job(4);
  for (int batch = 0; batch < 64; ++batch) {
    job.publish(40'000, 64, 4);
    for (int part = 0; part < 4; ++part) {
      job.run_blocks(part, [](std::int64_t, std::int64_t) {});
      job.note_speed(part, 10'000, part == 1 && batch == 31 ? 1'000'000'000 : 100'000);
    }
    const std::vector<std::int64_t> borders = job.borders();
    CHECK(borders[2] - borders[1] > 9'000);
  }
}

TEST(few_rows_are_divided_evenly) {
  SyncJob job(kMaxParts);
  for (int batch = 0; batch < 100; ++batch) {
    job.publish(16, 1, 16);
    for (int part = 0; part < 16; ++part) {
      std::int64_t num_run = 0;
      job.run_blocks(part, [&](std::int64_t begin, std::int64_t end) { num_run += end - begin; });
      CHECK_EQUAL(num_run, part == 0 ? 16 : 0);  // the first thread finds all the others late
      job.note_speed(part, 1, 1 + part);
    }
    for (int part = 0; part <= 16; ++part) CHECK_EQUAL(job.borders()[part], part);
  }
}

TEST(the_last_blocks_are_left_to_their_thread) {
  SyncJob job(4);
  job.publish(4 * 80, 8, 4, 2);
  Rows rows(4 * 80);
  const auto run = [&](std::int64_t begin, std::int64_t end) { rows.run(begin, end); };
  CHECK(job.run_blocks(0, run));
  CHECK_EQUAL(rows.num_run(), 80 + 3 * (80 - 2 * 8));
  CHECK(!job.is_done());
  CHECK(!job.run_blocks(4, run));  // a thread without a part of its own
  CHECK(job.run_blocks(2, run));   // one that was late
  CHECK_EQUAL(rows.num_run(), 4 * 80 - 2 * 2 * 8);
  CHECK(!job.wait(0, true));
  CHECK(job.run_blocks(0, run, true));  // the others do not get on
  CHECK(job.is_done());
  CHECK(rows.all_once());
}

TEST(threads_that_come_and_go_lose_no_row) {
  constexpr int kNumThreads = 4;
  constexpr std::int64_t kNumRows = 500;
  SyncJob job(kNumThreads);
  std::vector<std::atomic<int>> num_runs(kNumRows);
  std::atomic<bool> stopping{false};
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) num_runs[row].fetch_add(1, std::memory_order_relaxed);
  };
  std::vector<std::thread> threads;
  for (int part = 1; part < kNumThreads; ++part) {
    threads.emplace_back([&, part] {
      while (!stopping) {
        if (job.run_blocks(part, run)) job.note_speed(part, 1, part);
      }
    });
  }
  for (int batch = 1; batch <= 300; ++batch) {
    job.publish(kNumRows, 1 + batch % 40, 1 + batch / 50 % kNumThreads, batch % 3);
    job.run_blocks(0, run);
    if (!job.wait(1'000, true)) job.run_blocks(0, run, true);
    CHECK(job.wait(-1, true));
    for (std::atomic<int>& count : num_runs) CHECK_EQUAL(count.load(), batch);
  }
  stopping = true;
  for (std::thread& thread : threads) thread.join();
}
