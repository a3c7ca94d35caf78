// The step rule: what a step() call does with an env, given the autoreset mode and the env's phase.
//
// | mode      | RUNNING                                         | ENDED            | UNSTARTED, BROKEN |
// |-----------|-------------------------------------------------|------------------|-------------------|
// | NEXT_STEP | step                                            | reset            | refuse            |
// | SAME_STEP | step, then reset if the step ended the episode  | the same         | refuse            |
// | DISABLED  | step                                            | refuse           | refuse            |
//
// This is the only place in C++ that decides it: native envs (stepping.h), the checks before a step, the worker loop of
// Python envs and the statistics all ask here. envfleet/core/autoreset.py is the same table for Python, and
// tests/test_autoreset.py compares it with what every executor does.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "envfleet/abi.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

enum class StepRule : std::uint8_t { step, step_then_reset, reset, refuse };

// mode: ef_autoreset; phase: ef_phase.
constexpr StepRule step_rule(std::int32_t mode, std::uint8_t phase) {
  if (phase == EF_ENDED && mode == EF_NEXT_STEP) return StepRule::reset;
  if (phase == EF_ENDED && mode == EF_DISABLED) return StepRule::refuse;
  if (phase != EF_RUNNING && phase != EF_ENDED) return StepRule::refuse;  // UNSTARTED or BROKEN
  return mode == EF_SAME_STEP ? StepRule::step_then_reset : StepRule::step;
}

// The row of a step that ends an episode holds the next episode's first observation, and the last one beside it as final.
constexpr bool has_final_rows(std::int32_t mode) { return step_rule(mode, EF_RUNNING) == StepRule::step_then_reset; }
// The step after the end of an episode starts the next one.
constexpr bool resets_on_next_step(std::int32_t mode) { return step_rule(mode, EF_ENDED) == StepRule::reset; }
// An env that has ended cannot be stepped until it is reset.
constexpr bool refuses_ended(std::int32_t mode) { return step_rule(mode, EF_ENDED) == StepRule::refuse; }

// A time limit of 0 means none.
constexpr bool reaches_limit(std::int32_t elapsed_step, std::int32_t max_episode_steps) {
  return max_episode_steps > 0 && elapsed_step >= max_episode_steps;
}

}  // namespace envfleet

#pragma GCC visibility pop
