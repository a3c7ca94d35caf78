// What a step, a reset and a fault leave in an env's slot: its row's numbers, its phase, its statistics.
//
// Thread safety: as in board.h; called by the env's worker while the env is its own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "board.h"
#include "envfleet/abi.h"

namespace envfleet::rows {

// The one place that counts steps and knows the time limit (0: none). True: the episode ended.
inline bool count_step(Slot& slot, std::int32_t limit, double reward, bool terminated, bool truncated) {
  ++slot.elapsed_step;
  truncated = truncated || (limit > 0 && slot.elapsed_step >= limit);
  slot.reward = reward;
  slot.terminated = terminated ? 1 : 0;
  slot.truncated = truncated ? 1 : 0;
  Statistics& own = slot.statistics;
  ++own.num_steps;
  own.return_now += reward;
  const bool ended = terminated || truncated;
  if (ended) {
    slot.phase = EF_ENDED;
    const auto length = static_cast<std::int64_t>(slot.elapsed_step);
    const double total = own.return_now;
    const bool is_first = own.num_episodes == 0;
    ++own.num_episodes;
    own.return_sum += total;
    own.length_sum += length;
    own.return_min = is_first ? total : std::min(own.return_min.get(), total);
    own.return_max = is_first ? total : std::max(own.return_max.get(), total);
    own.length_min = is_first ? length : std::min(own.length_min.get(), length);
    own.length_max = is_first ? length : std::max(own.length_max.get(), length);
  }
  return ended;
}

// A new episode. In the same step as the last one's end, its count goes beside.
inline void count_reset(Slot& slot, bool is_same_step) {
  if (is_same_step) {
    slot.final_elapsed_step = slot.elapsed_step;
    slot.has_final = 1;
  } else {
    slot.reward = 0;
    slot.terminated = slot.truncated = 0;
  }
  slot.elapsed_step = 0;
  slot.phase = EF_RUNNING;
  ++slot.statistics.num_resets;
  slot.statistics.return_now = 0;
}

// The env raised: its row says nothing, and it is broken. The observation is the runner's to clear.
inline void count_fault(Slot& slot, bool in_reset) {
  slot.kind = kFaultRow;
  slot.phase = EF_BROKEN;
  slot.reward = 0;
  slot.terminated = slot.truncated = slot.has_final = 0;
  slot.info_mask = slot.final_mask = 0;
  if (in_reset) slot.elapsed_step = 0;
  slot.statistics.return_now = 0;
}

// Without an episode: nothing is counted of what was before.
inline void set_phase(Slot& slot, std::uint8_t phase) {
  slot.phase = phase;
  slot.elapsed_step = 0;
  slot.statistics.return_now = 0;
}

}  // namespace envfleet::rows
