// HumanoidStandup: Gymnasium's HumanoidStandup-v5 and -v4.
#include "humanoid_parts.h"

namespace envfleet::mujoco {

namespace {

constexpr double kStandupCosts[2] = {-infinity, 10.0};

template <int kVersion>
class HumanoidStandup : public MujocoEnv<HumanoidStandup<kVersion>> {
  using Base = MujocoEnv<HumanoidStandup>;
  using Base::sim_;

 public:
  static constexpr Task task{kVersion, "humanoidstandup.xml", 5, 1000, kNoThreshold};

  static Params params() {
    if (kVersion == 4) return with_common_params(task, {});
    Params own = {
        // Gymnasium takes it, and its reward leaves it out.
        {"uph_cost_weight", 1.0, "without effect, as in Gymnasium"},
        {"ctrl_cost_weight", 0.1, "of the squared controls in the reward"},
        {"impact_cost_weight", 0.5e-6, "of the squared contact forces in the reward"},
        {"impact_cost_range", kStandupCosts, "what the impact cost is clipped to"},
        {"reset_noise_scale", 1e-2, "of the noise in initial positions and velocities"},
        {"exclude_current_positions_from_observation", true, "leave out the x and y positions"},
    };
    HumanoidParts::add_params(own);
    return with_common_params(task, own);
  }
  static void check(const Model& model, const Config&) { model.expect_sizes(3, HumanoidParts::kRootVelocities); }
  static int observation_size(const Model& model, const Config& config) { return parts(config).size(model); }
  static void infos(const Model& model, const Config&, Spec& spec) {
    if (kVersion == 5) {
      for (const char* name : {"x_position", "y_position", "z_distance_from_origin"}) spec.info(name, scalar<double>());
      HumanoidParts::tendon_infos(model, spec);
    }
    for (const char* name : {"reward_linup", "reward_quadctrl", "reward_impact"}) {
      spec.info(name, scalar<double>(), EF_ON_STEP);
    }
  }

  explicit HumanoidStandup(const Config& config)
      : Base(config, true),
        ctrl_cost_weight_(kVersion == 5 ? config.real("ctrl_cost_weight") : 0.1),
        impact_cost_weight_(kVersion == 5 ? config.real("impact_cost_weight") : 0.5e-6),
        impact_cost_range_(kVersion == 5 ? Range(config, "impact_cost_range") : Range(kStandupCosts)),
        reset_noise_scale_(kVersion == 5 ? checked_scale(config) : 0.01),
        parts_(parts(config)) {}

  void start(Rng& rng) { this->start_uniformly(rng, reset_noise_scale_); }
  void write(double* observation) const { parts_.write(sim_, observation); }

  void tell_start(Out& out) {
    if (kVersion == 5) tell_place(out);
  }

  void score(const float*, Out& out) {
    const double up = sim_.data().qpos[2] / sim_.model()->opt.timestep;
    const double ctrl_cost = ctrl_cost_weight_ * sum_of_squares(sim_.data().ctrl, sim_.model()->nu);
    const std::span<const double> forces = sim_.contact_forces();
    const double raw_cost = impact_cost_weight_ * sum_of_squares(forces.data(), static_cast<std::ptrdiff_t>(forces.size()));
    const double impact_cost = clip(raw_cost, impact_cost_range_.low, impact_cost_range_.high);
    out.reward = up - ctrl_cost - impact_cost + 1;
    InfoRow row = kVersion == 5 ? tell_place(out) : InfoRow(out);
    row.real(up).real(-ctrl_cost).real(-impact_cost);
  }

 private:
  static HumanoidParts parts(const Config& config) {
    return {config, kVersion == 5, kVersion == 4 || config.flag("exclude_current_positions_from_observation")};
  }

  InfoRow tell_place(Out& out) {
    const double* qpos = sim_.data().qpos;
    InfoRow row(out);
    row.real(qpos[0]).real(qpos[1]).real(qpos[2] - sim_.init_qpos()[2]);
    return HumanoidParts::tell_tendons(sim_, row);
  }

  double ctrl_cost_weight_, impact_cost_weight_;
  Range impact_cost_range_;
  double reset_noise_scale_;
  HumanoidParts parts_;
};

}  // namespace

ENVFLEET_ENV("HumanoidStandup-v5", HumanoidStandup<5>)
ENVFLEET_ENV("HumanoidStandup-v4", HumanoidStandup<4>)

}  // namespace envfleet::mujoco
