// Fleet<Env>: steps, resets and observes ranges of envs of one type. This is the inner loop, into which the compiler
// inlines the env's own step().
//
// Thread safety: as in abi.h; a slot is used by one thread at a time.
// Invariant: every row of a range is complete when the range function returns, also the row of an env that threw: it is
// zero, and on_fault was called for it. (The engine may put the env's last observation there.)
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "envfleet/abi.h"
#include "envfleet/action_type.h"
#include "envfleet/env_concepts.h"
#include "envfleet/env_config.h"
#include "envfleet/env_slots.h"
#include "envfleet/exceptions.h"
#include "envfleet/guarded_rows.h"
#include "envfleet/lanes.h"
#include "envfleet/out.h"
#include "envfleet/rows.h"
#include "envfleet/step_rule.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

namespace detail {

template <class Env>
class Fleet : public EnvSlots<Env> {
  using Base = EnvSlots<Env>;
  using Base::action_bytes_;
  using Base::columns_;
  using Base::elapsed_steps_;
  using Base::envs_;
  using Base::info_columns_;
  using Base::last_obs_;
  using Base::num_envs_;
  using Base::obs_columns_;
  using Base::phases_;
  using Base::rngs_;
  using typename Base::Access;
  static_assert(
      HasLanes<Env> || !HasLaneState<Env>,
      "lane_state() goes with lanes and step_lanes(const LaneState<Number, N>&, const std::int32_t*, LaneOut<lanes>&)");
  static_assert(!HasLanes<Env> || std::is_same_v<ActionOf<Env>, std::int32_t>,
                "step_lanes() is for Discrete actions: step() must take an int");

 public:
  explicit Fleet(const ef_fleet_options& options)
      : Base(options),
        autoreset_(options.autoreset),
        step_limit_(options.max_episode_steps > 0 ? options.max_episode_steps : std::numeric_limits<std::int32_t>::max()) {}

  void reset_range(const ef_rows& rows, std::int64_t begin, std::int64_t end) noexcept {
    for (std::int64_t row = begin; row < end; ++row) {
      guard_rows(rows, row, 1, EF_IN_RESET, [&] {
        start_episode(rows, row, env_of(rows, row));
        rows.reward[row] = 0.0;
        rows.terminated[row] = 0;
        rows.truncated[row] = 0;
      });
    }
  }

  void step_range(const ef_rows& rows, std::int64_t begin, std::int64_t end) noexcept {
    if constexpr (HasLanes<Env>) {
      step_groups<Env::lanes>(rows, begin, end);
    } else {
      step_one_by_one(rows, begin, end);
    }
  }

  void step_one_by_one(const ef_rows& rows, std::int64_t begin, std::int64_t end) noexcept {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int32_t env_id = env_of(rows, row);
      if (step_rule(autoreset_, phases_[env_id]) == StepRule::reset) {
        reset_range(rows, row, row + 1);
        continue;
      }
      guard_rows(rows, row, 1, EF_IN_STEP, [&] { step_row(rows, row, env_id); });
    }
  }

  void observe_range(const ef_rows& rows, std::int64_t begin, std::int64_t end) noexcept {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int32_t env_id = env_of(rows, row);
      rows.elapsed_step[row] = elapsed_steps_[env_id];
      if constexpr (HasObserve<Env>) {
        guard_rows(rows, row, 1, EF_IN_OBSERVE, [&] {
          clear_rows(obs_columns_, rows.obs, row, 1);
          GuardedRows guarded(rows, obs_columns_, info_columns_, row, 1);
          Out out(guarded.rows(), &obs_columns_, &info_columns_, row);
          this->built(env_id)->observe(out);
          guarded.finish();
        });
      } else {
        for (std::size_t k = 0; k < obs_columns_.size(); ++k) {
          const std::int64_t bytes = obs_columns_[k].row_bytes;
          std::memcpy(row_at(rows.obs[k], bytes, row), last_obs_[k].data() + bytes * env_id, bytes);
        }
      }
    }
  }

 private:
  // Batch buffers are recycled: without this, an element that the env skips would hold a value of an earlier batch.
  void clear_outputs(const ef_rows& rows, std::int64_t first_row, int count = 1) {
    if constexpr (!WritesEveryElement<Env>) clear_rows(obs_columns_, rows.obs, first_row, count);
    if (!info_columns_.empty()) clear_rows(info_columns_, rows.info, first_row, count);
  }

  void start_episode(const ef_rows& rows, std::int64_t row, std::int32_t env_id) {
    clear_outputs(rows, row);
    GuardedRows guarded(rows, obs_columns_, info_columns_, row, 1);
    Out out(guarded.rows(), &obs_columns_, &info_columns_, row);
    this->built(env_id)->reset(rngs_[env_id], out);
    guarded.finish();
    elapsed_steps_[env_id] = 0;
    phases_[env_id] = EF_RUNNING;
    rows.elapsed_step[row] = 0;
    if constexpr (!HasObserve<Env>) this->remember_obs(rows, row, env_id);
  }

  void step_row(const ef_rows& rows, std::int64_t row, std::int32_t env_id) {
    clear_outputs(rows, row);
    GuardedRows guarded(rows, obs_columns_, info_columns_, row, 1);
    Out out(guarded.rows(), &obs_columns_, &info_columns_, row);
    act(rows, env_id, out, guarded);
    guarded.finish();
    finish_row(rows, row, env_id, out.reward, out.terminated, out.truncated);
  }

  void finish_row(const ef_rows& rows, std::int64_t row, std::int32_t env_id, double reward, bool terminated,
                  bool truncated) noexcept {
    const std::int32_t elapsed_step = ++elapsed_steps_[env_id];
    truncated |= elapsed_step >= step_limit_;
    rows.reward[row] = reward;
    rows.terminated[row] = terminated ? 1 : 0;
    rows.truncated[row] = truncated ? 1 : 0;
    rows.elapsed_step[row] = elapsed_step;
    if (terminated || truncated) [[unlikely]] {
      end_episode(rows, row, env_id);
    } else if constexpr (!HasObserve<Env>) {
      this->remember_obs(rows, row, env_id);
    }
  }

  // Steps groups of kLanes rows, and what they leave over, or could not step, in smaller groups if step_lanes() has them.
  template <int kLanes>
  void step_groups(const ef_rows& rows, std::int64_t begin, std::int64_t end) noexcept {
    const auto step_smaller = [&](std::int64_t first_row, std::int64_t last_row) {
      if constexpr (StepsLanes<Env, kLanes / 2>) {
        step_groups<kLanes / 2>(rows, first_row, last_row);
      } else {
        step_one_by_one(rows, first_row, last_row);
      }
    };
    std::int64_t row = begin;
    for (; end - row >= kLanes; row += kLanes) {
      if (!step_lanes<kLanes>(rows, row)) [[unlikely]]
        step_smaller(row, row + kLanes);
    }
    if (row < end) step_smaller(row, end);
  }

  // Steps kLanes rows from first_row on. Returns false if no env was stepped.
  template <int kLanes>
  bool step_lanes(const ef_rows& rows, std::int64_t first_row) noexcept {
    std::int32_t ids[kLanes];
    std::int32_t actions[kLanes];
    const std::int32_t first_env = env_of(rows, first_row);
    const auto* all_actions = static_cast<const std::int32_t*>(rows.actions);
    const bool are_consecutive = rows.env_ids == nullptr || is_consecutive(rows.env_ids + first_row, kLanes);
    std::uint64_t due[(kLanes + kGroupRows - 1) / kGroupRows];
    if (are_consecutive) {
      for (int lane = 0; lane < kLanes; lane += kGroupRows) {
        due[lane / kGroupRows] = find_due(first_env + lane, std::min(kLanes - lane, kGroupRows));
      }
      std::memcpy(actions, all_actions + first_env, sizeof actions);
    } else {
      for (int lane = 0; lane < kLanes; ++lane) {
        ids[lane] = rows.env_ids[first_row + lane];
        actions[lane] = all_actions[ids[lane]];
      }
    }
    clear_outputs(rows, first_row, kLanes);
    GuardedRows guarded(rows, obs_columns_, info_columns_, first_row, kLanes);
    LaneOut<kLanes> out(Out(guarded.rows(), &obs_columns_, &info_columns_, first_row));
    bool are_stepped = false;
    // It is not known which of the envs threw, or how far the others got: all of them are broken.
    const auto& given_actions = guarded.action(actions);
    const auto step = [&](const auto& envs) { return Env::step_lanes(envs, given_actions, out); };
    if (!guard_rows(rows, first_row, kLanes, EF_IN_STEP, [&] {
          if constexpr (HasLaneState<Env>) {
            are_stepped = are_consecutive ? columns_.template step_consecutive<kLanes>(first_env, step)
                                          : columns_.template step_any<kLanes>(ids, step);
          } else {
            Env* envs[kLanes];
            for (int lane = 0; lane < kLanes; ++lane) {
              envs[lane] = &*envs_[are_consecutive ? first_env + lane : ids[lane]].env;
            }
            are_stepped = step(envs);
          }
          guarded.finish();
        })) {
      return true;
    }
    if (!are_stepped) return false;
    if (are_consecutive) {
      for (int lane = 0; lane < kLanes; lane += kGroupRows) {
        const int count = std::min(kLanes - lane, kGroupRows);
        finish_consecutive(rows, first_row + lane, first_env + lane, out.reward + lane, out.terminated + lane,
                           due[lane / kGroupRows], count);
      }
      return true;
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::int64_t row = first_row + lane;
      if (resets_on_next_step(autoreset_) && phases_[ids[lane]] == EF_ENDED) [[unlikely]] {
        reset_range(rows, row, row + 1);
      } else {
        finish_row(rows, row, ids[lane], out.reward[lane], out.terminated[lane] != 0, false);
      }
    }
    return true;
  }

  // Which of up to 64 consecutive envs the next step resets, one bit per env. Prefetches what the resets need.
  std::uint64_t find_due(std::int32_t first_env, int count) const {
    if (!resets_on_next_step(autoreset_)) return 0;
    std::uint8_t are_due[kGroupRows];
    for (int i = 0; i < count; ++i) are_due[i] = phases_[first_env + i] == EF_ENDED;
    const std::uint64_t due = mask_of(are_due, are_due, count);
    prefetch_for_reset(first_env, due);
    return due;
  }

  void prefetch_for_reset(std::int32_t first_env, std::uint64_t mask) const {
    if (num_envs_ <= kMaxCachedEnvs) return;
    for (; mask != 0; mask &= mask - 1) {
      const std::int32_t env_id = first_env + std::countr_zero(mask);
      __builtin_prefetch(&rngs_[env_id], 1);
      if constexpr (HasLaneState<Env>) __builtin_prefetch(&envs_[env_id], 1);  // the steps do not touch it
    }
  }

  // finish_row() for up to 64 rows of consecutive envs, in loops that become vector instructions. Envs that are due for a
  // reset were stepped too, in vain: leaving a lane out would cost more than starting its next episode over the result.
  void finish_consecutive(const ef_rows& rows, std::int64_t first_row, std::int32_t first_env, const double* reward,
                          const std::uint8_t* is_terminated, std::uint64_t due, int count) noexcept {
    std::uint8_t terminated[kGroupRows], truncated[kGroupRows];
    std::int32_t elapsed_steps[kGroupRows];
    for (int i = 0; i < count; ++i) elapsed_steps[i] = elapsed_steps_[first_env + i] + 1;
    for (int i = 0; i < count; ++i) truncated[i] = elapsed_steps[i] >= step_limit_;
    for (int i = 0; i < count; ++i) terminated[i] = is_terminated[i] != 0;  // an author may write any number
    std::memcpy(&elapsed_steps_[first_env], elapsed_steps, count * sizeof *elapsed_steps);
    std::memcpy(rows.elapsed_step + first_row, elapsed_steps, count * sizeof *elapsed_steps);
    std::memcpy(rows.reward + first_row, reward, count * sizeof *reward);
    std::memcpy(rows.terminated + first_row, terminated, count);
    std::memcpy(rows.truncated + first_row, truncated, count);
    if constexpr (!HasObserve<Env>) this->remember_obs(rows, first_row, first_env, count);
    const std::uint64_t ended = mask_of(terminated, truncated, count) & ~due;
    if (has_final_rows(autoreset_)) prefetch_for_reset(first_env, ended);
    // Only after all rows were written: what follows overwrites its own row.
    for (std::uint64_t mask = ended; mask != 0; mask &= mask - 1) {
      const int i = std::countr_zero(mask);
      end_episode(rows, first_row + i, first_env + i);
    }
    for (std::uint64_t mask = due; mask != 0; mask &= mask - 1) {
      const std::int64_t row = first_row + std::countr_zero(mask);
      reset_range(rows, row, row + 1);
    }
  }

  void end_episode(const ef_rows& rows, std::int64_t row, std::int32_t env_id) noexcept {
    phases_[env_id] = EF_ENDED;
    if (!has_final_rows(autoreset_)) {
      this->remember_obs(rows, row, env_id);
      return;
    }
    copy_row(obs_columns_, rows.final_obs, rows.obs, row);
    copy_row(info_columns_, rows.final_info, rows.info, row);
    rows.final_elapsed_step[row] = elapsed_steps_[env_id];
    guard_rows(rows, row, 1, EF_IN_RESET, [&] { start_episode(rows, row, env_id); });
  }

  void act(const ef_rows& rows, std::int32_t env_id, Out& out, [[maybe_unused]] GuardedRows& guarded) {
    using Action = ActionOf<Env>;
    Action action;
    if constexpr (std::is_pointer_v<Action>) {
      action = guarded.action(reinterpret_cast<Action>(static_cast<const char*>(rows.actions) + action_bytes_ * env_id),
                              action_bytes_);
    } else {
      action = static_cast<const std::int32_t*>(rows.actions)[env_id];
    }
    const Access env(*this, env_id);
    if constexpr (StepsWithRng<Env, Action>) {
      env->step(action, rngs_[env_id], out);
    } else {
      env->step(action, out);
    }
  }

  // Runs a body that may throw, which breaks the envs of these rows. Returns true if it did not throw.
  template <class Body>
  bool guard_rows(const ef_rows& rows, std::int64_t first_row, int count, ef_method method, Body&& body) noexcept {
    try {
      body();
      return true;
    } catch (...) {
      fail_rows(rows, first_row, count, method);
    }
    return false;
  }

  // Called in a catch block. Out of line: inlined, it would prevent the inlining of the body.
  [[gnu::noinline, gnu::cold]] void fail_rows(const ef_rows& rows, std::int64_t first_row, int count,
                                              ef_method method) noexcept {
    report_thrown([&](const char* what) {
      for (int i = 0; i < count; ++i) fail_row(rows, first_row + i, method, what);
    });
  }

  void fail_row(const ef_rows& rows, std::int64_t row, ef_method method, const char* what) noexcept {
    const std::int32_t env_id = env_of(rows, row);
    phases_[env_id] = EF_BROKEN;
    clear_rows(obs_columns_, rows.obs, row, 1);
    if (method != EF_IN_OBSERVE) {
      clear_rows(info_columns_, rows.info, row, 1);
      rows.reward[row] = 0.0;
      rows.terminated[row] = 0;
      rows.truncated[row] = 0;
      rows.elapsed_step[row] = method == EF_IN_RESET ? 0 : elapsed_steps_[env_id];
    }
    rows.on_fault(rows.fault_context, row, env_id, method, what);
  }

  const std::int32_t autoreset_;
  const std::int32_t step_limit_;
};

}  // namespace detail

}  // namespace envfleet

#pragma GCC visibility pop
