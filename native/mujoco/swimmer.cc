// Swimmer: Gymnasium's Swimmer-v5 and -v4, gym's -v3 and -v2.
#include "locomotion.h"

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
    return Base::state_size(model, skipped_positions(config, 2));
  }
  static void infos(const Model&, const Config&, Spec& spec) {
    if (kVersion < 5) {
      spec.info("reward_fwd", scalar<double>(), EF_ON_STEP).info("reward_ctrl", scalar<float>(), EF_ON_STEP);
    }
    if (kVersion > 2) Travel::infos(spec, kVersion == 5);
    if (kVersion == 5) spec.info("reward_ctrl", scalar<float>(), EF_ON_STEP);
  }

  explicit Swimmer(const Config& config)
      : Base(config),
        forward_reward_weight_(config.real("forward_reward_weight")),
        ctrl_cost_weight_(config.real("ctrl_cost_weight")),
        reset_noise_scale_(checked_scale(config)),
        skipped_(skipped_positions(config, 2)) {}

  void start(Rng& rng) { this->start_uniformly(rng, reset_noise_scale_); }
  void remember() { std::copy_n(sim_.data().qpos, 2, marks_.begin()); }
  void write(double* observation) const { this->write_state(observation, skipped_); }

  void tell_start(Out& out) {
    InfoRow row(out);
    if (kVersion == 5) tell_place(row, sim_.data().qpos);
  }

  void score(const float* action, Out& out) {
    const double* after = sim_.data().qpos;
    const Travel travel(after, marks_, sim_.dt(), forward_reward_weight_);
    const float ctrl_cost = control_cost(ctrl_cost_weight_, action, sim_);
    out.reward = travel.forward - ctrl_cost;
    InfoRow row(out);
    if (kVersion < 5) row.real(travel.forward).real32(-ctrl_cost);
    if (kVersion > 2) travel.tell(row, after);
    if (kVersion == 5) row.real32(-ctrl_cost);
  }

 private:
  double forward_reward_weight_, ctrl_cost_weight_, reset_noise_scale_;
  int skipped_;
};

}  // namespace

ENVFLEET_ENV("Swimmer-v5", Swimmer<5>)
ENVFLEET_ENV("Swimmer-v4", Swimmer<4>)
ENVFLEET_ENV("Swimmer-v3", Swimmer<3>)
ENVFLEET_ENV("Swimmer-v2", Swimmer<2>)

}  // namespace envfleet::mujoco
