// Hopper: Gymnasium's Hopper-v5 and -v4, gym's -v3 and -v2.
#include <algorithm>

#include "walker_env.h"

namespace envfleet::mujoco {

namespace {

constexpr double kHopperState[2] = {-100.0, 100.0};
constexpr double kHopperZ[2] = {0.7, infinity};
constexpr double kHopperAngle[2] = {-0.2, 0.2};

template <int kVersion>
class Hopper : public WalkerEnv<Hopper<kVersion>, kVersion> {
  using Base = WalkerEnv<Hopper, kVersion>;
  using Base::sim_;

 public:
  static constexpr Task task{kVersion, "hopper.xml", 4, 1000, 3800.0};

  static Params params() {
    const Params own = {
        {"forward_reward_weight", 1.0, "of the forward velocity in the reward"},
        {"ctrl_cost_weight", 1e-3, "of the squared action in the reward"},
        {"healthy_reward", 1.0, "for a step in which the hopper is healthy"},
        {"terminate_when_unhealthy", true, "end the episode when the hopper is not healthy"},
        {"healthy_state_range", kHopperState, "the joint positions and velocities of a healthy hopper"},
        {"healthy_z_range", kHopperZ, "the heights of a healthy hopper"},
        {"healthy_angle_range", kHopperAngle, "the angles of a healthy hopper"},
        {"reset_noise_scale", 5e-3, "of the noise in initial positions and velocities"},
        {"exclude_current_positions_from_observation", true, "leave out the x position"},
    };
    return with_common_params(task, own);
  }

  explicit Hopper(const Config& config) : Base(config), healthy_state_(config, "healthy_state_range") {}

  bool is_healthy() const {
    const mjData& data = sim_.data();
    const auto holds = [this](double value) { return healthy_state_.encloses(value); };
    if (kVersion == 2 && !std::isfinite(data.qpos[0])) return false;
    // All of the state but x and z.
    return this->stands() && std::all_of(data.qpos + 2, data.qpos + sim_.model()->nq, holds) &&
           std::all_of(data.qvel, data.qvel + sim_.model()->nv, holds);
  }

 private:
  Range healthy_state_;
};

}  // namespace

ENVFLEET_ENV("Hopper-v5", Hopper<5>)
ENVFLEET_ENV("Hopper-v4", Hopper<4>)
ENVFLEET_ENV("Hopper-v3", Hopper<3>)
ENVFLEET_ENV("Hopper-v2", Hopper<2>)

}  // namespace envfleet::mujoco
