// HumanoidStandup: Gymnasium's HumanoidStandup-v5 and -v4, gym's -v2.
#include "humanoid_env.h"

namespace envfleet::mujoco {

namespace {

template <int kVersion>
class HumanoidStandup : public HumanoidEnv<HumanoidStandup<kVersion>, kVersion> {
  using Base = HumanoidEnv<HumanoidStandup, kVersion>;
  using Base::sim_;

 public:
  static constexpr Task task{kVersion, "humanoidstandup.xml", 5, 1000, kNoThreshold};

  static Params params() {
    if (kVersion < 5) return with_common_params(task, {});
    Params own = {
        // Gymnasium takes it, and its reward leaves it out.
        {"uph_cost_weight", 1.0, "without effect, as in Gymnasium"},
        {"ctrl_cost_weight", 0.1, "of the squared controls in the reward"},
        {"impact_cost_weight", 0.5e-6, "of the squared contact forces in the reward"},
        {"impact_cost_range", kHumanoidCosts, "what the impact cost is clipped to"},
        {"reset_noise_scale", 1e-2, "of the noise in initial positions and velocities"},
        {"exclude_current_positions_from_observation", true, "leave out the x and y positions"},
    };
    HumanoidParts::add_params(own);
    return with_common_params(task, own);
  }
  static bool excludes_positions(const Config& config) {
    return kVersion < 5 || config.flag("exclude_current_positions_from_observation");
  }
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
      : Base(config, kVersion == 5 ? checked_scale(config) : 0.01, kVersion == 5 ? config.real("ctrl_cost_weight") : 0.1,
             kVersion == 5 ? config.real("impact_cost_weight") : 0.5e-6,
             kVersion == 5 ? Range(config, "impact_cost_range") : Range(kHumanoidCosts)) {}

  InfoRow tell_place(Out& out) const {
    const double* qpos = sim_.data().qpos;
    InfoRow row(out);
    row.real(qpos[0]).real(qpos[1]).real(qpos[2] - sim_.init_qpos()[2]);
    return HumanoidParts::tell_tendons(sim_, row);
  }

  void score(const float*, Out& out) {
    const double up = sim_.data().qpos[2] / sim_.model()->opt.timestep;
    const double ctrl_cost = this->control_cost();
    const double impact_cost = this->contact_cost();
    out.reward = up - ctrl_cost - impact_cost + 1;
    InfoRow row = kVersion == 5 ? tell_place(out) : InfoRow(out);
    row.real(up).real(-ctrl_cost).real(-impact_cost);
  }
};

}  // namespace

ENVFLEET_ENV("HumanoidStandup-v5", HumanoidStandup<5>)
ENVFLEET_ENV("HumanoidStandup-v4", HumanoidStandup<4>)
ENVFLEET_ENV("HumanoidStandup-v2", HumanoidStandup<2>)

}  // namespace envfleet::mujoco
