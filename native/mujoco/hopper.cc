// Hopper: Gymnasium's Hopper-v5 and -v4.
#include "mujoco_env.h"

namespace envfleet::mujoco {

namespace {

constexpr double kHopperState[2] = {-100.0, 100.0};
constexpr double kHopperZ[2] = {0.7, infinity};
constexpr double kHopperAngle[2] = {-0.2, 0.2};

template <int kVersion>
class Hopper : public MujocoEnv<Hopper<kVersion>> {
  using Base = MujocoEnv<Hopper>;
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
  static void check(const Model& model, const Config&) { model.expect_sizes(3, 1); }
  static int observation_size(const Model& model, const Config& config) {
    return Base::state_size(model, config.flag("exclude_current_positions_from_observation") ? 1 : 0);
  }
  static void infos(const Model&, const Config&, Spec& spec) { Base::walker_infos(spec, kVersion == 5); }

  explicit Hopper(const Config& config)
      : Base(config),
        forward_reward_weight_(config.real("forward_reward_weight")),
        ctrl_cost_weight_(config.real("ctrl_cost_weight")),
        healthy_reward_(config.real("healthy_reward")),
        reset_noise_scale_(checked_scale(config)),
        healthy_state_(config, "healthy_state_range"),
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
    this->template score_walker<kVersion>(action, out, is_healthy(), forward_reward_weight_, ctrl_cost_weight_,
                                          healthy_reward_, terminate_when_unhealthy_);
  }

 private:
  bool is_healthy() const {
    const mjData& data = sim_.data();
    const auto holds = [this](double value) { return healthy_state_.encloses(value); };
    // All of the state but x and z.
    return healthy_z_.encloses(data.qpos[1]) && healthy_angle_.encloses(data.qpos[2]) &&
           std::all_of(data.qpos + 2, data.qpos + sim_.model()->nq, holds) &&
           std::all_of(data.qvel, data.qvel + sim_.model()->nv, holds);
  }

  double forward_reward_weight_, ctrl_cost_weight_, healthy_reward_, reset_noise_scale_;
  Range healthy_state_, healthy_z_, healthy_angle_;
  int skipped_;
  bool terminate_when_unhealthy_;
};

}  // namespace

ENVFLEET_ENV("Hopper-v5", Hopper<5>)
ENVFLEET_ENV("Hopper-v4", Hopper<4>)

}  // namespace envfleet::mujoco
