// The fast check of a call's input: ids and actions that are right as they are.
//
// Whatever is not plainly right is refused with false; the Python layer then looks again, slowly, and either converts it
// or explains what is wrong. No env is changed here; only action slots of idle envs are written.
//
// Thread safety: the caller's thread only; the const methods of ActionStore from any, for different envs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "envfleet/abi.h"
#include "envfleet/rows.h"
#include "envfleet/step_rule.h"

namespace envfleet::engine {

// Where actions are stored: one contiguous slot per env.
struct ActionSlots {
  char* base;
  std::int64_t slot_bytes;
  char* of(std::int32_t env_id) const { return base + env_id * slot_bytes; }
};

// The actions of a call, in the caller's array: one contiguous row per env.
struct GivenActions {
  const void* data = nullptr;
  std::int32_t dtype = -1;                // -1: there are none
  const std::int32_t* env_ids = nullptr;  // null: row i is for env i
  std::int64_t count = 0;
};

// Accepts ids that are in range, distinct and idle.
class IdChecker {
 public:
  explicit IdChecker(std::int32_t num_envs) : stamps_(num_envs, 0) {}

  // is_in_flight(env_id) tells whether an env is not idle.
  template <class IsInFlight>
  bool accepts(const std::int32_t* env_ids, std::int64_t count, IsInFlight&& is_in_flight) {
    if (++stamp_ == 0) {  // wrapped around: old stamps would look new
      std::fill(stamps_.begin(), stamps_.end(), 0);
      stamp_ = 1;
    }
    for (std::int64_t begin = 0; begin < count; begin += detail::kGroupRows) {
      const std::int64_t size = std::min<std::int64_t>(count - begin, detail::kGroupRows);
      const bool are_accepted = detail::is_consecutive(env_ids + begin, size)
                                    ? accepts_consecutive(env_ids[begin], size, is_in_flight)
                                    : accepts_any(env_ids + begin, size, is_in_flight);
      if (!are_accepted) return false;
    }
    return true;
  }

 private:
  template <class IsInFlight>
  bool accepts_any(const std::int32_t* env_ids, std::int64_t count, IsInFlight&& is_in_flight) {
    const auto num_envs = static_cast<std::uint32_t>(stamps_.size());
    for (std::int64_t i = 0; i < count; ++i) {
      const auto id = static_cast<std::uint32_t>(env_ids[i]);
      if (id >= num_envs || stamps_[id] == stamp_ || is_in_flight(env_ids[i])) return false;
      stamps_[id] = stamp_;
    }
    return true;
  }

  // The same, in loops that become vector instructions.
  template <class IsInFlight>
  bool accepts_consecutive(std::int32_t first, std::int64_t count, IsInFlight&& is_in_flight) {
    if (first < 0 || first + count > static_cast<std::int64_t>(stamps_.size())) return false;
    std::uint32_t* const stamps = stamps_.data() + first;
    const std::uint32_t stamp = stamp_;
    bool are_idle = true, are_new = true;
    for (std::int64_t i = 0; i < count; ++i) are_idle &= !is_in_flight(first + static_cast<std::int32_t>(i));
    for (std::int64_t i = 0; i < count; ++i) are_new &= stamps[i] != stamp;
    if (!are_idle || !are_new) return false;
    std::fill_n(stamps, count, stamp);
    return true;
  }

  std::vector<std::uint32_t> stamps_;
  std::uint32_t stamp_ = 0;
};

// Whether the step rule refuses none of these envs. env_ids null: envs 0 to count - 1. phase_of(env_id) is its ef_phase.
template <class PhaseOf>
bool may_step(std::int32_t autoreset, const std::int32_t* env_ids, std::int64_t count, PhaseOf&& phase_of) {
  bool is_refused[EF_BROKEN + 1];
  for (int phase = 0; phase <= EF_BROKEN; ++phase) {
    is_refused[phase] = step_rule(autoreset, static_cast<std::uint8_t>(phase)) == StepRule::refuse;
  }
  bool any_is_refused = false;  // no branch per env: an asynchronous pool asks before every step
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t env_id = env_ids != nullptr ? env_ids[i] : static_cast<std::int32_t>(i);
    any_is_refused |= is_refused[std::min<int>(phase_of(env_id), EF_BROKEN)];
  }
  return !any_is_refused;
}

// Checks a batch of actions and stores them in action slots.
class ActionStore {
 public:
  // is_wide: discrete actions are stored as int64 instead of int32.
  explicit ActionStore(const ef_array& space, bool is_wide = false);

  // Whether actions of this dtype can be stored: the space's own dtype, int32 or int64 for discrete spaces, and float64
  // for float32.
  bool takes(std::int32_t dtype) const;
  // Whether all actions are in the space. Stores nothing.
  bool accepts(const void* actions, std::int32_t dtype, std::int64_t count) const;
  // env_ids null: row i is for env i. Returns false if some actions are not in the space; the slots must not be used then.
  bool store(const ActionSlots& slots, const void* actions, std::int32_t dtype, const std::int32_t* env_ids,
             std::int64_t count) const;
  // The same, but the slots may be used in any case: if some actions are not in the space, valid ones are stored instead.
  // Actions that were accepted may have been changed since, by another thread that writes to the caller's array.
  bool store_valid(const ActionSlots& slots, const void* actions, std::int32_t dtype, const std::int32_t* env_ids,
                   std::int64_t count) const;
  // The size of one action of this dtype.
  std::int64_t row_bytes(std::int32_t dtype) const;

 private:
  // Calls use(source, target, in_range) with values of the types to read and to store, and in_range(value, element), which
  // checks a value after conversion to the target's precision.
  template <class Use>
  bool with_types(std::int32_t dtype, Use&& use) const;
  template <class Source, class Target, class InRange>
  bool store_as(const ActionSlots& slots, const void* actions, const std::int32_t* env_ids, std::int64_t count,
                InRange in_range) const;

  bool is_wide_;
  std::int32_t kind_;
  std::int32_t dtype_;
  std::int64_t size_ = 1;  // elements of one action
  std::int64_t start_, count_;
  std::vector<std::int64_t> nvec_;
  std::vector<double> low_, high_;
};

}  // namespace envfleet::engine
