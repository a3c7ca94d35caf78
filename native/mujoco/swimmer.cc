// Swimmer: Gymnasium's Swimmer-v5 and -v4.
#include "mujoco_env.h"

namespace envfleet::mujoco {

namespace {

template <int kVersion>
class Swimmer : public MujocoEnv<Swimmer<kVersion>> {
  using Base = MujocoEnv<Swimmer>;
  using Base::marks_;
  using Base::sim_;

 public:
  static constexpr Task task{kVersion, "swimmer.xml", 4, 1000, 360.0};

  static Params params() {
    const Params own = {
        {"forward_reward_weight", 1.0, "of the forward velocity in the reward"},
        {"ctrl_cost_weight", 1e-4, "of the squared action in the reward"},
        {"reset_noise_scale", 0.1, "of the noise in initial positions and velocities"},
        {"exclude_current_positions_from_observation", true, "leave out the x and y positions"},
    };
    return with_common_params(task, own);
  }
  static void check(const Model& model, const Config&) { model.expect_sizes(2, 1); }
  static int observation_size(const Model& model, const Config& config) {
    return Base::state_size(model, config.flag("exclude_current_positions_from_observation") ? 2 : 0);
  }
  static void infos(const Model&, const Config&, Spec& spec) {
    if (kVersion == 5) {
      for (const char* name : {"x_position", "y_position", "distance_from_origin"}) spec.info(name, scalar<double>());
      for (const char* name : {"x_velocity", "y_velocity", "reward_forward"}) spec.info(name, scalar<double>(), EF_ON_STEP);
      spec.info("reward_ctrl", scalar<float>(), EF_ON_STEP);
      return;
    }
    spec.info("reward_fwd", scalar<double>(), EF_ON_STEP);
    spec.info("reward_ctrl", scalar<float>(), EF_ON_STEP);
    for (const char* name :
         {"x_position", "y_position", "distance_from_origin", "x_velocity", "y_velocity", "forward_reward"}) {
      spec.info(name, scalar<double>(), EF_ON_STEP);
    }
  }

  explicit Swimmer(const Config& config)
      : Base(config),
        forward_reward_weight_(config.real("forward_reward_weight")),
        ctrl_cost_weight_(config.real("ctrl_cost_weight")),
        reset_noise_scale_(checked_scale(config)),
        skipped_(config.flag("exclude_current_positions_from_observation") ? 2 : 0) {}

  void start(Rng& rng) { this->start_uniformly(rng, reset_noise_scale_); }
  void remember() { std::copy_n(sim_.data().qpos, 2, marks_.begin()); }
  void write(double* observation) const { this->write_state(observation, skipped_); }

  void tell_start(Out& out) {
    if (kVersion == 5) tell_place(InfoRow(out));
  }

  void score(const float* action, Out& out) {
    const double* after = sim_.data().qpos;
    const double x_velocity = (after[0] - marks_[0]) / sim_.dt();
    const double y_velocity = (after[1] - marks_[1]) / sim_.dt();
    const double forward = forward_reward_weight_ * x_velocity;
    const float ctrl_cost = static_cast<float>(ctrl_cost_weight_) * sum_of_squares(action, sim_.model()->nu);
    out.reward = forward - ctrl_cost;
    if (kVersion == 5) {
      tell_place(InfoRow(out)).real(x_velocity).real(y_velocity).real(forward).real32(-ctrl_cost);
    } else {
      tell_place(InfoRow(out).real(forward).real32(-ctrl_cost)).real(x_velocity).real(y_velocity).real(forward);
    }
  }

 private:
  InfoRow tell_place(InfoRow row) const {
    const double* qpos = sim_.data().qpos;
    return row.real(qpos[0]).real(qpos[1]).real(norm(qpos, 2));
  }

  double forward_reward_weight_, ctrl_cost_weight_, reset_noise_scale_;
  int skipped_;
};

}  // namespace

ENVFLEET_ENV("Swimmer-v5", Swimmer<5>)
ENVFLEET_ENV("Swimmer-v4", Swimmer<4>)

}  // namespace envfleet::mujoco
