// MountainCar (Moore): Gymnasium's MountainCar-v0.
//
// Double precision and Gymnasium's order of operations throughout: where the C library's
// cosine is the one that Python calls, trajectories agree to the last bit.
#include <algorithm>
#include <cmath>

#include "envfleet/env.h"
#include "envs/reset_bounds.h"

namespace {

using envfleet::Config;
using envfleet::Out;
using envfleet::Rng;
using envfleet::Spec;

class MountainCar {
 public:
  static constexpr bool writes_every_element = true;

  static envfleet::Params params() {
    return {{"goal_velocity", 0.0, "the least velocity at which reaching the flag ends the episode"}};
  }

  static void spec(const Config&, Spec& spec) {
    spec.observation(envfleet::box<float>({-1.2, -0.07}, {0.6, 0.07}));
    spec.action(envfleet::discrete(3));
    spec.reset_option("low").reset_option("high");
    spec.max_episode_steps(200).reward_threshold(-110.0);
  }

  explicit MountainCar(const Config& config) : goal_velocity_(config.real("goal_velocity")) {}

  void reset(Rng& rng, Out& out) {
    const auto [low, high] = envfleet::reset_bounds(out, -0.6, -0.4);
    state_[0] = rng.uniform(low, high);
    state_[1] = 0.0;
    observe(out);
  }

  void step(int action, Out& out) {
    double& position = state_[0];
    double& velocity = state_[1];
    velocity += (action - 1) * force_ + std::cos(3 * position) * -gravity_;
    velocity = std::clamp(velocity, -max_speed_, max_speed_);
    position = std::clamp(position + velocity, min_position_, max_position_);
    if (position == min_position_ && velocity < 0) velocity = 0.0;
    out.terminated = position >= goal_position_ && velocity >= goal_velocity_;
    out.reward = -1.0;
    observe(out);
  }

  void observe(Out& out) {
    float* obs = out.obs<float>();
    for (int i = 0; i < 2; ++i) obs[i] = static_cast<float>(state_[i]);
  }

  template <class Visitor>
  void fields(Visitor& visit) {
    visit("state", state_);
    visit("goal_velocity", goal_velocity_);
    visit("goal_position", goal_position_);
    visit("min_position", min_position_);
    visit("max_position", max_position_);
    visit("max_speed", max_speed_);
    visit("force", force_);
    visit("gravity", gravity_);
  }

 private:
  double goal_velocity_;
  double goal_position_ = 0.5;
  double min_position_ = -1.2;
  double max_position_ = 0.6;
  double max_speed_ = 0.07;
  double force_ = 0.001;
  double gravity_ = 0.0025;
  double state_[2] = {0, 0};  // position, velocity
};

}  // namespace

ENVFLEET_ENV("MountainCar-v0", MountainCar)
