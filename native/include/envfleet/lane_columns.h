// LaneColumns<Env>: lane_state() of all envs of a fleet, as columns: element k of every env side by side.
//
// step_lanes() works on the columns in place, as vector instructions want them, and touches no env. For every other call
// the numbers are copied into the env's struct and back (EnvSlots::Access), so that the author writes one struct.
//
// Thread safety: as in abi.h; the elements of an env are used by one thread at a time.
// Invariant: between calls the columns hold the state, and what lane_state() holds in the struct is stale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "envfleet/env_concepts.h"
#include "envfleet/lanes.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

namespace detail {

template <class Env>
class LaneColumns {
  using Numbers = LaneNumbers<Env>;
  using Number = std::remove_extent_t<Numbers>;
  static constexpr int kNumbers = std::extent_v<Numbers>;
  static constexpr std::size_t kAlignment = 64;
  static_assert(std::is_arithmetic_v<Number> && kNumbers > 0, "lane_state() must return a reference to an array of numbers");
  static_assert(noexcept(std::declval<Env&>().lane_state()), "lane_state() must be noexcept: nothing could report it");

 public:
  using State = LaneState<Number, kNumbers>;

  explicit LaneColumns(std::int32_t num_envs)
      // A cache line more than needed: columns whose addresses differ by a multiple of 4096 bytes get in each other's way.
      : stride_((static_cast<std::size_t>(num_envs) / kLineNumbers + 2) * kLineNumbers),
        numbers_(new (std::align_val_t{kAlignment}) Number[stride_ * kNumbers]()),
        kinds_(num_envs, 0) {}

  void load(std::int32_t env_id, Env& env) const noexcept {
    Numbers& own = env.lane_state();
    for (int k = 0; k < kNumbers; ++k) own[k] = column(k)[env_id];
  }
  void store(std::int32_t env_id, Env& env) noexcept {
    const Numbers& own = env.lane_state();
    for (int k = 0; k < kNumbers; ++k) column(k)[env_id] = own[k];
    if constexpr (HasLaneKind<Env>) {
      static_assert(noexcept(env.lane_kind()), "lane_kind() must be noexcept: nothing could report it");
      kinds_[env_id] = env.lane_kind();
    }
  }

  // Calls step(state) with the numbers of kLanes consecutive envs. Returns false, without a call, if they differ in kind.
  template <int kLanes, class Step>
  bool step_consecutive(std::int32_t first_env, Step&& step) {
    State state{kinds_[first_env], {}};
    if (!are_alike<kLanes>([&](int lane) { return kinds_[first_env + lane]; })) return false;
    for (int k = 0; k < kNumbers; ++k) state.columns[k] = column(k) + first_env;
    return step(state);
  }

  // The same for envs in any order, whose numbers are copied.
  template <int kLanes, class Step>
  bool step_any(const std::int32_t* env_ids, Step&& step) {
    State state{kinds_[env_ids[0]], {}};
    if (!are_alike<kLanes>([&](int lane) { return kinds_[env_ids[lane]]; })) return false;
    alignas(kAlignment) Number copies[kNumbers][kLanes];
    for (int k = 0; k < kNumbers; ++k) {
      for (int lane = 0; lane < kLanes; ++lane) copies[k][lane] = column(k)[env_ids[lane]];
      state.columns[k] = copies[k];
    }
    if (!step(state)) return false;
    for (int k = 0; k < kNumbers; ++k) {
      for (int lane = 0; lane < kLanes; ++lane) column(k)[env_ids[lane]] = copies[k][lane];
    }
    return true;
  }

 private:
  static constexpr std::size_t kLineNumbers = kAlignment / sizeof(Number);

  struct Delete {
    void operator()(Number* numbers) const { ::operator delete[](numbers, std::align_val_t{kAlignment}); }
  };

  Number* column(int k) const { return numbers_.get() + stride_ * k; }

  template <int kLanes, class KindOf>
  static bool are_alike(KindOf&& kind_of) {
    std::uint32_t differences = 0;  // collected bits and no test per env, so that the loop becomes vector instructions
    for (int lane = 0; lane < kLanes; ++lane) differences |= kind_of(lane) ^ kind_of(0);
    return !HasLaneKind<Env> || differences == 0;
  }

  std::size_t stride_;  // from column to column, in numbers
  std::unique_ptr<Number[], Delete> numbers_;
  std::vector<std::uint32_t> kinds_;
};

}  // namespace detail

}  // namespace envfleet

#pragma GCC visibility pop
