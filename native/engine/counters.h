// Counters: what pool.stats() reports of native envs: steps, resets and finished episodes.
//
// Always on, so made for envs whose step takes a few nanoseconds. A stepped row changes one number in an array over all
// envs: the return so far. Batches of all envs are counted as a whole, not by row. Everything else is written when an
// episode ends. Autoresets are derived: in the next-step mode the end of an episode makes one due, and the env's next row
// is that reset.
//
// Thread safety: count_steps() and count_resets() are called by the thread that ran the rows, for an env by one thread at
// a time. Each thread locks its own shard meanwhile, and read() locks all of them, so that any thread may call it at any
// time. drop() from any thread, within a range. Everything else from the caller's thread: begin_whole() while no env is in
// flight, begin_episode() for an idle env.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/fleet_handle.h"
#include "envfleet/abi.h"

namespace envfleet::engine {

// The statistics of one env since its pool was made, as statistics.EnvStats in Python. Minima and maxima are 0 before the
// first episode has ended; times are in nanoseconds, and 0 for native envs, since reading the clock would take longer
// than a step.
struct EnvStatistics {
  std::int64_t num_steps = 0, num_resets = 0, num_episodes = 0;
  double return_sum = 0, return_min = 0, return_max = 0;
  std::int64_t length_sum = 0, length_min = 0, length_max = 0;
  std::int64_t busy_ns = 0, slowest_ns = 0;
};

class Counters {
 public:
  // num_shards: how many threads may count at once. Two threads in one shard wait for each other.
  Counters(std::int32_t num_envs, ef_autoreset autoreset, int num_shards);

  // All envs are about to be stepped: one row of each is counted.
  void begin_whole() { num_whole_.store(num_whole() + 1, std::memory_order_relaxed); }

  // Rows of a range that a step or a reset has completed. Rows without env_ids were counted by begin_whole().
  void count_steps(int shard, const ef_rows& rows, std::int64_t begin, std::int64_t end);
  void count_resets(int shard, const ef_rows& rows, std::int64_t begin, std::int64_t end);

  // The env threw: its episode is not counted. Called before its row is counted, and compensates for that.
  void drop(std::int32_t env_id, Request request, std::int32_t method);

  // The env was given another state, was rebuilt, or has to be rebuilt. keeps_return: the return so far still counts.
  void begin_episode(std::int32_t env_id, std::uint8_t phase, bool keeps_return);

  std::vector<EnvStatistics> read();

 private:
  // One cache line per env: everything that the end of an episode changes. Lengths are doubles next to the returns, so
  // that one vector instruction updates both.
  struct alignas(64) Record {
    double sum[2] = {0, 0};  // return, length
    double min[2] = {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
    double max[2] = {-std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
    std::int64_t num_episodes = 0;
    std::int64_t due_at = -1;  // num_whole_ when an autoreset became due; -1: it has had a row of its own since
  };
  // What changes rarely.
  struct Rare {
    std::int64_t num_resets = 0;  // explicit resets, without autoresets
    std::int64_t num_dropped = 0;
    // Autoresets that became due other than by the end of an episode, minus those that did not take place.
    std::int64_t more_dues = 0;
  };
  struct alignas(64) Shard {
    std::mutex mutex;
  };

  struct Free {
    void operator()(double* memory) const { std::free(memory); }
  };

  // Ordered by the locks of the shards: a thread that has counted rows of a batch has seen it begin.
  std::int64_t num_whole() const { return num_whole_.load(std::memory_order_relaxed); }
  // With a lock that read() takes.
  void set_phase(std::int32_t env_id, std::uint8_t phase);
  void forget_episode(std::int32_t env_id) { returns_[env_id] = 0; }
  void end_episodes(const ef_rows& rows, std::int64_t begin, std::int64_t end);

  const std::int32_t num_envs_;
  const ef_autoreset autoreset_;
  std::vector<Record> records_;
  std::vector<Rare> rare_;
  std::unique_ptr<double[], Free> returns_;  // of the episodes in progress
  std::vector<std::int64_t> num_single_;     // by env: its rows in other batches
  // The number of batches of all envs. In a cache line of its own: it changes with every batch.
  alignas(64) std::atomic<std::int64_t> num_whole_{0};
  alignas(64) std::mutex drops_;
  std::vector<Shard> shards_;
};

}  // namespace envfleet::engine
