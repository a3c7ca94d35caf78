// HalfCheetah: Gymnasium's HalfCheetah-v5 and -v4, gym's -v3 and -v2.
#include "locomotion.h"

namespace envfleet::mujoco {

namespace {

template <int kVersion>
class HalfCheetah : public MujocoEnv<HalfCheetah<kVersion>> {
  using Base = MujocoEnv<HalfCheetah>;
  using Base::sim_;

 public:
  static constexpr Task task{kVersion, "half_cheetah.xml", 5, 1000, 4800.0};

  static Params params() {
    const Params own = {
        {"forward_reward_weight", 1.0, "of the forward velocity in the reward"},
        {"ctrl_cost_weight", 0.1, "of the squared action in the reward"},
        {"reset_noise_scale", 0.1, "of the noise in initial positions and velocities"},
        {"exclude_current_positions_from_observation", true, "leave out the x position"},
    };
    return with_common_params(task, own);
  }
  static int observation_size(const Model& model, const Config& config) {
    return Base::state_size(model, skipped_positions(config, 1));
  }
  static void infos(const Model&, const Config&, Spec& spec) {
    if (kVersion > 2) {
      spec.info("x_position", scalar<double>(), kVersion == 5 ? EF_ON_STEP | EF_ON_RESET : EF_ON_STEP);
      spec.info("x_velocity", scalar<double>(), EF_ON_STEP);
    }
    spec.info(kVersion == 5 ? "reward_forward" : "reward_run", scalar<double>(), EF_ON_STEP);
    spec.info("reward_ctrl", scalar<float>(), EF_ON_STEP);
  }

  explicit HalfCheetah(const Config& config)
      : Base(config),
        forward_reward_weight_(config.real("forward_reward_weight")),
        ctrl_cost_weight_(config.real("ctrl_cost_weight")),
        reset_noise_scale_(checked_scale(config)),
        skipped_(skipped_positions(config, 1)) {}

  void start(Rng& rng) { this->start_normally(rng, reset_noise_scale_); }
  void remember() { this->marks_[0] = sim_.data().qpos[0]; }
  void write(double* observation) const { this->write_state(observation, skipped_); }

  void tell_start(Out& out) {
    if (kVersion == 5) InfoRow(out).real(sim_.data().qpos[0]);
  }

  void score(const float* action, Out& out) {
    const double x = sim_.data().qpos[0];
    const double velocity = (x - this->marks_[0]) / sim_.dt();
    const double forward = forward_reward_weight_ * velocity;
    const float ctrl_cost = control_cost(ctrl_cost_weight_, action, sim_);
    out.reward = forward - ctrl_cost;
    InfoRow row(out);
    if (kVersion > 2) row.real(x).real(velocity);
    row.real(forward).real32(-ctrl_cost);
  }

 private:
  double forward_reward_weight_, ctrl_cost_weight_, reset_noise_scale_;
  int skipped_;
};

}  // namespace

ENVFLEET_ENV("HalfCheetah-v5", HalfCheetah<5>)
ENVFLEET_ENV("HalfCheetah-v4", HalfCheetah<4>)
ENVFLEET_ENV("HalfCheetah-v3", HalfCheetah<3>)
ENVFLEET_ENV("HalfCheetah-v2", HalfCheetah<2>)

}  // namespace envfleet::mujoco
