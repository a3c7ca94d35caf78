// Which optional members an env struct has, and the type of its actions. All found at compile time.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "envfleet/fields.h"
#include "envfleet/lanes.h"
#include "envfleet/out.h"
#include "envfleet/random_state.h"
#include "envfleet/rng.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

namespace detail {

template <class Env>
concept HasParams = requires { Env::params(); };
template <class Env>
concept HasObserve = requires(Env& env, Out& out) { env.observe(out); };
template <class Env>
concept HasFields = requires(Env& env, StateWriter& visit) { env.fields(visit); };
template <class Env>
concept HasSaveLoad = requires(Env& env, StateWriter& writer, StateReader& reader) {
  env.save(writer);
  env.load(reader);
};
template <class Env>
concept HasRender = requires(Env& env, Frame& frame) { env.render(frame); };
// An env that promises to write every element of its observations, so that they need not be cleared.
template <class Env>
concept WritesEveryElement = requires { requires Env::writes_every_element; };

// An env whose step_lanes() takes the numbers of the envs instead of pointers to them; see env.h.
template <class Env>
concept HasLaneState = requires(Env& env) { env.lane_state(); };
template <class Env>
concept HasLaneKind = requires(const Env& env) {
  { env.lane_kind() } -> std::convertible_to<std::uint32_t>;
};
// The array of numbers that lane_state() refers to.
template <HasLaneState Env>
using LaneNumbers = std::remove_reference_t<decltype(std::declval<Env&>().lane_state())>;

// The first argument of step_lanes().
template <class Env>
struct LaneInputOf {
  using type = Env* const*;
};
template <HasLaneState Env>
struct LaneInputOf<Env> {
  using type = const LaneState<std::remove_extent_t<LaneNumbers<Env>>, std::extent_v<LaneNumbers<Env>>>&;
};

// An env that can step kLanes envs at once; see env.h.
template <class Env, int kLanes>
concept StepsLanes =
    kLanes > 0 && requires(typename LaneInputOf<Env>::type envs, const std::int32_t* actions, LaneOut<kLanes>& out) {
      { Env::step_lanes(envs, actions, out) } -> std::same_as<bool>;
    };
template <class Env>
concept HasLanes = StepsLanes<Env, Env::lanes>;
// An env that is notified when its fields were written from outside.
template <class Env>
concept HasFieldsChanged = requires(Env& env) { env.fields_changed(); };

template <class Env, class Action>
concept StepsWithoutRng = requires(Env& env, Action action, Out& out) { env.step(action, out); };
// The generator that an env draws from: Rng, unless it declares another one.
template <class Env>
struct RandomOfEnv {
  using type = Rng;
};
template <class Env>
  requires requires { typename Env::Random; }
struct RandomOfEnv<Env> {
  using type = typename Env::Random;
};
template <class Env>
using RandomOf = typename RandomOfEnv<Env>::type;

template <class Env, class Action>
concept StepsWithRng = requires(Env& env, Action action, RandomOf<Env>& rng, Out& out) { env.step(action, rng, out); };
template <class Env, class Action>
concept StepsOn = StepsWithoutRng<Env, Action> || StepsWithRng<Env, Action>;

// The type of action that Env::step takes.
template <class Env>
auto action_type() {
  if constexpr (StepsOn<Env, std::int32_t>) {
    return std::int32_t{};
  } else if constexpr (StepsOn<Env, const float*>) {
    return static_cast<const float*>(nullptr);
  } else if constexpr (StepsOn<Env, const double*>) {
    return static_cast<const double*>(nullptr);
  } else if constexpr (StepsOn<Env, const std::int32_t*>) {
    return static_cast<const std::int32_t*>(nullptr);
  } else if constexpr (StepsOn<Env, const std::int8_t*>) {
    return static_cast<const std::int8_t*>(nullptr);
  } else if constexpr (StepsOn<Env, const std::uint8_t*>) {
    return static_cast<const std::uint8_t*>(nullptr);
  } else {
    static_assert(StepsOn<Env, std::int64_t>,
                  "step() must be callable as step(action, out) or step(action, rng, out); see the table in env.h");
  }
}

template <class Env>
using ActionOf = decltype(action_type<Env>());

}  // namespace detail

}  // namespace envfleet

#pragma GCC visibility pop
