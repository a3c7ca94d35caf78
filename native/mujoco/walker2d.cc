// Walker2d: Gymnasium's Walker2d-v5 and -v4.
#include "mujoco_env.h"

namespace envfleet::mujoco {

namespace {

constexpr double kWalkerZ[2] = {0.8, 2.0};
constexpr double kWalkerAngle[2] = {-1.0, 1.0};

template <int kVersion>
class Walker2d : public MujocoEnv<Walker2d<kVersion>> {
  using Base = MujocoEnv<Walker2d>;
  using Base::sim_;

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
  static void check(const Model& model, const Config&) { model.expect_sizes(3, 1); }
  static int observation_size(const Model& model, const Config& config) {
    return Base::state_size(model, config.flag("exclude_current_positions_from_observation") ? 1 : 0);
  }
  static void infos(const Model&, const Config&, Spec& spec) { Base::walker_infos(spec, kVersion == 5); }

  explicit Walker2d(const Config& config)
      : Base(config),
        forward_reward_weight_(config.real("forward_reward_weight")),
        ctrl_cost_weight_(config.real("ctrl_cost_weight")),
        healthy_reward_(config.real("healthy_reward")),
        reset_noise_scale_(checked_scale(config)),
        healthy_z_(config, "healthy_z_range"),
        healthy_angle_(config, "healthy_angle_range"),
        skipped_(config.flag("exclude_current_positions_from_observation") ? 1 : 0),
        terminate_when_unhealthy_(config.flag("terminate_when_unhealthy")) {}

  void start(Rng& rng) { this->start_uniformly(rng, reset_noise_scale_); }
  void remember() { this->marks_[0] = sim_.data().qpos[0]; }
  void write(double* observation) const { this->write_clipped_state(observation, skipped_); }

  void tell_start(Out& out) {
    if (kVersion == 5) InfoRow(out).real(sim_.data().qpos[0]).real(sim_.data().qpos[1] - sim_.init_qpos()[1]);
  }

  void score(const float* action, Out& out) {
    const bool healthy = healthy_z_.encloses(sim_.data().qpos[1]) && healthy_angle_.encloses(sim_.data().qpos[2]);
    this->template score_walker<kVersion>(action, out, healthy, forward_reward_weight_, ctrl_cost_weight_, healthy_reward_,
                                          terminate_when_unhealthy_);
  }

 private:
  double forward_reward_weight_, ctrl_cost_weight_, healthy_reward_, reset_noise_scale_;
  Range healthy_z_, healthy_angle_;
  int skipped_;
  bool terminate_when_unhealthy_;
};

}  // namespace

ENVFLEET_ENV("Walker2d-v5", Walker2d<5>)
ENVFLEET_ENV("Walker2d-v4", Walker2d<4>)

}  // namespace envfleet::mujoco
