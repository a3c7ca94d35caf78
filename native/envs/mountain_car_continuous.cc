// MountainCar with a continuous engine: Gymnasium's MountainCarContinuous-v0.
//
// Gymnasium keeps this state in float32, except between a reset and the first step, where
// it is still float64. Both are followed here, rounding for rounding: computing all in
// double would part from it after a few steps.
#include <cmath>

#include "envfleet/env.h"
#include "envs/reset_bounds.h"

namespace {

using envfleet::Config;
using envfleet::Out;
using envfleet::Rng;
using envfleet::Spec;

class MountainCarContinuous {
 public:
  static constexpr bool writes_every_element = true;

  static envfleet::Params params() {
    return {{"goal_velocity", 0.0, "the least velocity at which reaching the flag ends the episode"}};
  }

  static void spec(const Config&, Spec& spec) {
    spec.observation(envfleet::box<float>({-1.2, -0.07}, {0.6, 0.07}));
    spec.action(envfleet::box<float>({1}, -1.0, 1.0));
    spec.reset_option("low").reset_option("high");
    spec.max_episode_steps(999).reward_threshold(90.0);
  }

  explicit MountainCarContinuous(const Config& config) : goal_velocity_(config.real("goal_velocity")) {}

  void reset(Rng& rng, Out& out) {
    const auto [low, high] = envfleet::reset_bounds(out, -0.6, -0.4);
    state_[0] = rng.uniform(low, high);
    state_[1] = 0.0;
    state_is_float64_ = true;
    observe(out);
  }

  void step(const float* action, Out& out) {
    out.terminated = state_is_float64_ ? move<double>(action[0]) : move<float>(action[0]);
    state_is_float64_ = false;
    const double thrust = action[0];
    out.reward = (out.terminated ? 100.0 : 0.0) - thrust * thrust * 0.1;
    observe(out);
  }

  void observe(Out& out) {
    float* obs = out.obs<float>();
    for (int i = 0; i < 2; ++i) obs[i] = static_cast<float>(state_[i]);
  }

  template <class Visitor>
  void fields(Visitor& visit) {
    visit("state", state_);
    visit("state_is_float64", state_is_float64_);
    visit("goal_velocity", goal_velocity_);
    visit("goal_position", goal_position_);
    visit("min_position", min_position_);
    visit("max_position", max_position_);
    visit("max_speed", max_speed_);
    visit("power", power_);
  }

 private:
  // One step in the state's precision; true when the goal is reached. As in numpy, a
  // constant takes the precision of the value that it meets.
  template <class Real>
  bool move(float action) {
    Real position = static_cast<Real>(state_[0]);
    Real velocity = static_cast<Real>(state_[1]);
    velocity += acceleration<Real>(action, 0.0025 * std::cos(static_cast<double>(3 * position)));
    const Real max_speed = static_cast<Real>(max_speed_);
    if (velocity > max_speed) velocity = max_speed;
    if (velocity < -max_speed) velocity = -max_speed;
    position += velocity;
    const Real min_position = static_cast<Real>(min_position_);
    const Real max_position = static_cast<Real>(max_position_);
    if (position > max_position) position = max_position;
    if (position < min_position) position = min_position;
    if (position == min_position && velocity < 0) velocity = 0;
    state_[0] = static_cast<float>(position);
    state_[1] = static_cast<float>(velocity);
    return position >= static_cast<Real>(goal_position_) && velocity >= static_cast<Real>(goal_velocity_);
  }

  // A force within bounds is the float32 of the action; a clipped one is the bound, a
  // Python float, and what is computed from it stays double until it meets the state.
  template <class Real>
  Real acceleration(float action, double slope) const {
    if (action > 1.0f || action < -1.0f) return static_cast<Real>((action > 0 ? 1.0 : -1.0) * power_ - slope);
    return action * static_cast<float>(power_) - static_cast<float>(slope);
  }

  double goal_velocity_;
  double goal_position_ = 0.45;
  double min_position_ = -1.2;
  double max_position_ = 0.6;
  double max_speed_ = 0.07;
  double power_ = 0.0015;
  double state_[2] = {0, 0};  // position, velocity
  bool state_is_float64_ = true;
};

}  // namespace

ENVFLEET_ENV("MountainCarContinuous-v0", MountainCarContinuous)
