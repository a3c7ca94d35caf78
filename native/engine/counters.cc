#include "engine/counters.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "envfleet/lanes.h"
#include "envfleet/rows.h"
#include "envfleet/step_rule.h"

namespace envfleet::engine {

using detail::kGroupRows;
using detail::mask_of;

namespace {

// Aligned: a vector across two cache lines takes two loads.
double* zeros(std::int64_t count) {
  const std::int64_t bytes = (count * static_cast<std::int64_t>(sizeof(double)) + 63) / 64 * 64;
  auto* memory = static_cast<double*>(std::aligned_alloc(64, bytes));
  if (memory == nullptr) throw std::bad_alloc();
  std::fill_n(memory, count, 0.0);
  return memory;
}

// For rows that are contiguous in the batch and in the array of returns.
ENVFLEET_VECTOR_CLONES void add_rewards(double* returns, const double* reward, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) returns[i] += reward[i];
}

}  // namespace

Counters::Counters(std::int32_t num_envs, ef_autoreset autoreset, int num_shards)
    : num_envs_(num_envs),
      autoreset_(autoreset),
      records_(num_envs),
      rare_(num_envs),
      returns_(zeros(num_envs)),
      num_single_(num_envs, 0),
      shards_(num_shards) {}

void Counters::count_steps(int shard, const ef_rows& rows, std::int64_t begin, std::int64_t end) {
  std::lock_guard lock(shards_[shard].mutex);
  if (rows.env_ids == nullptr) {
    add_rewards(returns_.get() + begin, rows.reward + begin, end - begin);
  } else {
    for (std::int64_t first = begin; first < end; first += kGroupRows) {
      const std::int64_t size = std::min<std::int64_t>(end - first, kGroupRows);
      const std::int32_t* env_ids = rows.env_ids + first;
      if (detail::is_consecutive(env_ids, size)) {
        add_rewards(returns_.get() + env_ids[0], rows.reward + first, size);
        std::int64_t* num_single = num_single_.data() + env_ids[0];
        for (std::int64_t i = 0; i < size; ++i) num_single[i] += 1;
      } else {
        for (std::int64_t i = 0; i < size; ++i) {
          returns_[env_ids[i]] += rows.reward[first + i];
          num_single_[env_ids[i]] += 1;
        }
      }
    }
    // The row after the end of an episode is that of the autoreset. The records of other rows are not touched: each is a
    // cache line.
    for (std::int64_t row = begin; row < end; ++row) {
      if (rows.elapsed_step[row] == 0) [[unlikely]]
        records_[rows.env_ids[row]].due_at = -1;
    }
  }
  end_episodes(rows, begin, end);
}

void Counters::end_episodes(const ef_rows& rows, std::int64_t begin, std::int64_t end) {
  // With final rows the row itself already belongs to the next episode.
  const std::int32_t* lengths = has_final_rows(autoreset_) ? rows.final_elapsed_step : rows.elapsed_step;
  Record* const records = records_.data();
  double* const returns = returns_.get();
  const std::int64_t num_whole = this->num_whole();
  // One mask per 64 rows: a mispredicted branch costs as much as a row, and ends are hard to predict.
  constexpr std::int64_t kMasks = 8;
  std::uint64_t masks[kMasks];
  const auto env_of_bit = [&](std::int64_t first, std::uint64_t mask) {
    return static_cast<std::int64_t>(detail::env_of(rows, first + std::countr_zero(mask)));
  };
  for (; begin < end; begin += kMasks * kGroupRows) {
    const std::int64_t num_masks = std::min(kMasks, (end - begin + kGroupRows - 1) / kGroupRows);
    const bool prefetches = num_envs_ > detail::kMaxCachedEnvs;
    for (std::int64_t k = 0; k < num_masks; ++k) {
      const std::int64_t first = begin + k * kGroupRows;
      masks[k] = mask_of(rows.terminated + first, rows.truncated + first, std::min<std::int64_t>(end - first, kGroupRows));
      for (std::uint64_t mask = prefetches ? masks[k] : 0; mask != 0; mask &= mask - 1) {
        __builtin_prefetch(&records[env_of_bit(first, mask)], 1);
      }
    }
    for (std::int64_t k = 0; k < num_masks; ++k) {
      const std::int64_t first = begin + k * kGroupRows;
      for (std::uint64_t mask = masks[k]; mask != 0; mask &= mask - 1) {
        const std::int64_t env_id = env_of_bit(first, mask);
        Record& own = records[env_id];
        const double values[2] = {returns[env_id], static_cast<double>(lengths[first + std::countr_zero(mask)])};
        returns[env_id] = 0;
        for (int i = 0; i < 2; ++i) {
          own.sum[i] += values[i];
          own.min[i] = values[i] < own.min[i] ? values[i] : own.min[i];
          own.max[i] = values[i] > own.max[i] ? values[i] : own.max[i];
        }
        own.num_episodes += 1;
        own.due_at = num_whole;
      }
    }
  }
}

void Counters::count_resets(int shard, const ef_rows& rows, std::int64_t begin, std::int64_t end) {
  std::lock_guard lock(shards_[shard].mutex);
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int32_t env_id = rows.env_ids != nullptr ? rows.env_ids[row] : static_cast<std::int32_t>(row);
    set_phase(env_id, EF_RUNNING);
    forget_episode(env_id);
    rare_[env_id].num_resets += 1;
  }
}

void Counters::drop(std::int32_t env_id, Request request, std::int32_t method) {
  // Not the shard: a fault does not know which thread runs its row.
  std::lock_guard lock(drops_);
  Rare& own = rare_[env_id];
  forget_episode(env_id);
  if (request == Request::reset) own.num_resets -= 1;
  if (request != Request::step) return;
  own.num_dropped += 1;
  // The autoreset that was due did not take place.
  if (method == EF_IN_RESET) own.more_dues -= 1;
}

void Counters::begin_episode(std::int32_t env_id, std::uint8_t phase, bool keeps_return) {
  std::lock_guard lock(drops_);
  set_phase(env_id, phase);
  if (!keeps_return) forget_episode(env_id);
}

void Counters::set_phase(std::int32_t env_id, std::uint8_t phase) {
  Record& own = records_[env_id];
  const bool is_due = phase == EF_ENDED;
  rare_[env_id].more_dues += static_cast<int>(is_due) - static_cast<int>(own.due_at == num_whole());
  own.due_at = is_due ? num_whole() : -1;
}

std::vector<EnvStatistics> Counters::read() {
  std::vector<std::unique_lock<std::mutex>> locks;
  for (Shard& shard : shards_) locks.emplace_back(shard.mutex);
  locks.emplace_back(drops_);
  const std::int64_t num_whole = this->num_whole();
  std::vector<EnvStatistics> all;
  for (std::int32_t env_id = 0; env_id < num_envs_; ++env_id) {
    const Record& own = records_[env_id];
    const Rare& rare = rare_[env_id];
    std::int64_t num_steps = num_whole + num_single_[env_id] - rare.num_dropped;
    std::int64_t num_autoresets = 0;
    if (has_final_rows(autoreset_)) num_autoresets = own.num_episodes;
    if (resets_on_next_step(autoreset_)) {
      num_autoresets = own.num_episodes + rare.more_dues - static_cast<int>(own.due_at == num_whole);
      num_steps -= num_autoresets;
    }
    EnvStatistics& statistics = all.emplace_back();
    statistics.num_steps = num_steps;
    statistics.num_resets = rare.num_resets + num_autoresets;
    statistics.num_episodes = own.num_episodes;
    if (own.num_episodes == 0) continue;
    // If all returns are NaN, no comparison ever held.
    const bool is_ordered = own.min[0] <= own.max[0];
    statistics.return_sum = own.sum[0];
    statistics.return_min = is_ordered ? own.min[0] : std::numeric_limits<double>::quiet_NaN();
    statistics.return_max = is_ordered ? own.max[0] : std::numeric_limits<double>::quiet_NaN();
    statistics.length_sum = static_cast<std::int64_t>(own.sum[1]);
    statistics.length_min = static_cast<std::int64_t>(own.min[1]);
    statistics.length_max = static_cast<std::int64_t>(own.max[1]);
  }
  return all;
}

}  // namespace envfleet::engine
