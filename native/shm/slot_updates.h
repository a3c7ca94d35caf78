// What a step, a reset and a fault leave in an env's slot: its row, its phase, its statistics.
//
// Thread safety: as in segment.h; called by the env's worker while the slot belongs to it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "envfleet/abi.h"
#include "envfleet/step_rule.h"
#include "shm/segment.h"

namespace envfleet::shm {

// Whether a step with this result ends the episode: by itself or by the time limit (0: none).
inline bool ends_episode(const Slot& slot, std::int32_t max_episode_steps, bool terminated, bool truncated) {
  return terminated || truncated || reaches_limit(slot.elapsed_step + 1, max_episode_steps);
}

// Returns true if the step ended the episode.
inline bool count_step(Slot& slot, std::int32_t max_episode_steps, double reward, bool terminated, bool truncated) {
  ++slot.elapsed_step;
  truncated = truncated || reaches_limit(slot.elapsed_step, max_episode_steps);
  slot.reward = reward;
  slot.terminated = terminated ? 1 : 0;
  slot.truncated = truncated ? 1 : 0;
  SlotStatistics& statistics = slot.statistics;
  ++statistics.num_steps;
  statistics.current_return += reward;
  const bool ended = terminated || truncated;
  if (ended) {
    slot.phase = EF_ENDED;
    const auto length = static_cast<std::int64_t>(slot.elapsed_step);
    const double total = statistics.current_return;
    const bool is_first = statistics.num_episodes == 0;
    statistics.begin_edit();
    ++statistics.num_episodes;
    statistics.return_sum += total;
    statistics.length_sum += length;
    statistics.return_min = is_first ? total : std::min(statistics.return_min.get(), total);
    statistics.return_max = is_first ? total : std::max(statistics.return_max.get(), total);
    statistics.length_min = is_first ? length : std::min(statistics.length_min.get(), length);
    statistics.length_max = is_first ? length : std::max(statistics.length_max.get(), length);
    statistics.end_edit();
  }
  return ended;
}

// A new episode. is_same_step: the row also holds the end of the previous one, whose length is kept as final.
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
  slot.statistics.current_return = 0;
}

// Empties the row of an env that has no result: it raised, or its worker died. The env is broken from now on. Its
// observation is cleared by the caller of this function.
inline void clear_row(Slot& slot, RowKind kind, bool in_reset) {
  slot.kind = kind;
  slot.phase = EF_BROKEN;
  slot.reward = 0;
  slot.terminated = slot.truncated = slot.has_final = 0;
  slot.info_mask = slot.final_mask = 0;
  if (in_reset) slot.elapsed_step = 0;
}

// The env raised; the episode in progress is dropped from the statistics.
inline void count_fault(Slot& slot, bool in_reset) {
  clear_row(slot, kFaultRow, in_reset);
  slot.statistics.current_return = 0;
}

// Puts the env into a phase without an episode in progress.
inline void set_phase(Slot& slot, std::uint8_t phase) {
  slot.phase = phase;
  slot.elapsed_step = 0;
  slot.statistics.current_return = 0;
}

}  // namespace envfleet::shm
