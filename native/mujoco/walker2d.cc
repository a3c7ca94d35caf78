// Walker2d: Gymnasium's Walker2d-v5 and -v4, gym's -v3 and -v2.
#include "walker_env.h"

namespace envfleet::mujoco {

namespace {

constexpr double kWalkerZ[2] = {0.8, 2.0};
constexpr double kWalkerAngle[2] = {-1.0, 1.0};

template <int kVersion>
class Walker2d : public WalkerEnv<Walker2d<kVersion>, kVersion> {
 public:
  static constexpr Task task{kVersion, kVersion == 5 ? "walker2d_v5.xml" : "walker2d.xml", 4, 1000, kNoThreshold};

  static Params params() {
    const Params own = {
        {"forward_reward_weight", 1.0, "of the forward velocity in the reward"},
        {"ctrl_cost_weight", 1e-3, "of the squared action in the reward"},
        {"healthy_reward", 1.0, "for a step in which the walker is healthy"},
        {"terminate_when_unhealthy", true, "end the episode when the walker is not healthy"},
        {"healthy_z_range", kWalkerZ, "the heights of a healthy walker"},
        {"healthy_angle_range", kWalkerAngle, "the angles of a healthy walker"},
        {"reset_noise_scale", 5e-3, "of the noise in initial positions and velocities"},
        {"exclude_current_positions_from_observation", true, "leave out the x position"},
    };
    return with_common_params(task, own);
  }

  explicit Walker2d(const Config& config) : WalkerEnv<Walker2d, kVersion>(config) {}

  bool is_healthy() const { return this->stands(); }
};

}  // namespace

ENVFLEET_ENV("Walker2d-v5", Walker2d<5>)
ENVFLEET_ENV("Walker2d-v4", Walker2d<4>)
ENVFLEET_ENV("Walker2d-v3", Walker2d<3>)
ENVFLEET_ENV("Walker2d-v2", Walker2d<2>)

}  // namespace envfleet::mujoco
