// Tally: what pool.stats() tells of native envs: steps, resets, and the episodes that ended.
//
// Always on, so made for envs whose step takes a few nanoseconds. A row that was stepped changes one
// number, in an array over all envs: the return so far. Batches of all envs are counted, not their
// rows. The rest is written when an episode ends. Autoresets are not looked for: an episode's end
// makes one due, and the env's next row is it.
//
// Thread safety: count_steps() and count_resets() by the thread that ran the rows, an env by one at a
// time; it holds its own seat meanwhile, and read() holds all of them, so that it may come while envs
// are in flight. drop() from any thread, within a range. Everything else from the caller's thread:
// begin_whole() while no env is in flight, set_phase() and forget_episode() of an idle one.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "envfleet/abi.h"
#include "request.h"

namespace envfleet::engine {

// One env since the engine was made. Minima and maxima are 0 before the first episode ended.
struct EnvTally {
  std::int64_t num_steps = 0, num_resets = 0, num_episodes = 0;
  double return_sum = 0, return_min = 0, return_max = 0;
  std::int64_t length_sum = 0, length_min = 0, length_max = 0;
};

class Tally {
 public:
  // num_seats: threads that may count at once. Two in one seat wait for each other.
  Tally(std::int32_t num_envs, ef_autoreset autoreset, int num_seats);

  // All envs are about to be stepped: the rows count from now on.
  void begin_whole() { ++num_whole_; }

  // Rows of a range that a step or a reset has completed. Without env_ids they are part of what begin_whole() began.
  void count_steps(int seat, const ef_rows& rows, std::int64_t begin, std::int64_t end);
  void count_resets(int seat, const ef_rows& rows, std::int64_t begin, std::int64_t end);

  // The env threw: its episode counts for nothing. Called before its row is counted, which this makes up for.
  void drop(std::int32_t env_id, Request request, std::int32_t method);

  // The env was given another state, or built anew.
  void set_phase(std::int32_t env_id, std::uint8_t phase);
  void forget_episode(std::int32_t env_id) { returns_[env_id] = 0; }

  std::vector<EnvTally> read();

 private:
  // A cache line an env: all that an episode's end touches. Lengths are doubles beside the returns, so that
  // one instruction does both.
  struct alignas(64) Record {
    double sum[2] = {0, 0};  // return, length
    double min[2] = {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
    double max[2] = {-std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
    std::int64_t num_episodes = 0;
    std::int64_t due_at = -1;  // num_whole_ when it became due for an autoreset; -1: it had a single row since
  };
  // Of what happens seldom.
  struct Rare {
    std::int64_t num_resets = 0;  // those asked for
    std::int64_t num_dropped = 0;
    // Autoresets that became due otherwise than by an episode's end, less those that fell out.
    std::int64_t more_dues = 0;
  };
  struct alignas(64) Seat {
    std::mutex mutex;
  };

  struct Free {
    void operator()(double* memory) const { std::free(memory); }
  };

  void end_episodes(const ef_rows& rows, std::int64_t begin, std::int64_t end);

  const std::int32_t num_envs_;
  const ef_autoreset autoreset_;
  std::vector<Record> records_;
  std::vector<Rare> rare_;
  std::unique_ptr<double[], Free> returns_;  // of the episodes under way
  std::int64_t num_whole_ = 0;               // batches of all envs
  std::vector<std::int64_t> num_single_;     // by env: its rows in other batches
  std::mutex drops_;
  std::vector<Seat> seats_;
};

}  // namespace envfleet::engine
