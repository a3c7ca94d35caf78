// Humanoid: Gymnasium's Humanoid-v5 and -v4, gym's -v3 and -v2.
#include "humanoid_env.h"
#include "locomotion.h"

namespace envfleet::mujoco {

namespace {

constexpr double kHumanoidZ[2] = {1.0, 2.0};

template <int kVersion>
class Humanoid : public HumanoidEnv<Humanoid<kVersion>, kVersion> {
  using Base = HumanoidEnv<Humanoid, kVersion>;
  using Base::marks_;
  using Base::sim_;

 public:
  static constexpr Task task{kVersion, "humanoid.xml", 5, 1000, kNoThreshold};

  static Params params() {
    Params own = {
        {"forward_reward_weight", 1.25, "of the forward velocity in the reward"},
        {"ctrl_cost_weight", 0.1, "of the squared controls in the reward"},
        {"healthy_reward", 5.0, "for a step in which the humanoid is healthy"},
        {"terminate_when_unhealthy", true, "end the episode when the humanoid is not healthy"},
        {"healthy_z_range", kHumanoidZ, "the torso heights of a healthy humanoid"},
        {"reset_noise_scale", 1e-2, "of the noise in initial positions and velocities"},
        {"exclude_current_positions_from_observation", true, "leave out the x and y positions"},
    };
    if (kVersion == 4) return with_common_params(task, own);
    own.push_back({"contact_cost_weight", 5e-7, "of the squared contact forces in the reward"});
    own.push_back({"contact_cost_range", kHumanoidCosts, "what the contact cost is clipped to"});
    if (kVersion < 5) return with_common_params(task, own);
    HumanoidParts::add_params(own);
    return with_common_params(task, own);
  }
  static bool excludes_positions(const Config& config) { return config.flag("exclude_current_positions_from_observation"); }
  static void infos(const Model& model, const Config&, Spec& spec) {
    if (kVersion == 5) {
      for (const char* name : {"x_position", "y_position"}) spec.info(name, scalar<double>());
      HumanoidParts::tendon_infos(model, spec);
      spec.info("distance_from_origin", scalar<double>());
      for (const char* name :
           {"x_velocity", "y_velocity", "reward_survive", "reward_forward", "reward_ctrl", "reward_contact"}) {
        spec.info(name, scalar<double>(), EF_ON_STEP);
      }
      return;
    }
    for (const char* name : {"reward_linvel", "reward_quadctrl", "reward_alive"}) {
      spec.info(name, scalar<double>(), EF_ON_STEP);
    }
    if (kVersion < 4) spec.info("reward_impact", scalar<double>(), EF_ON_STEP);
    if (kVersion > 2) Travel::infos(spec, false);
  }

  explicit Humanoid(const Config& config)
      : Base(config, checked_scale(config), config.real("ctrl_cost_weight"),
             kVersion != 4 ? config.real("contact_cost_weight") : 0.0,
             kVersion != 4 ? Range(config, "contact_cost_range") : Range(kHumanoidCosts)),
        forward_reward_weight_(config.real("forward_reward_weight")),
        health_(config),
        healthy_z_(config, "healthy_z_range") {
    const double* masses = sim_.model()->body_mass;
    total_mass_ = pairwise_sum<double>([masses](std::ptrdiff_t i) { return masses[i]; }, 0, sim_.model()->nbody);
  }

  void remember() {
    for (int axis = 0; axis < 2; ++axis) marks_[axis] = mass_center(axis);
  }
  InfoRow tell_place(Out& out) const {
    const double* qpos = sim_.data().qpos;
    InfoRow row(out);
    row.real(qpos[0]).real(qpos[1]);
    HumanoidParts::tell_tendons(sim_, row).real(norm(qpos, 2));
    return row;
  }

  void score(const float*, Out& out) {
    const double after[2] = {mass_center(0), mass_center(1)};
    const Travel travel(after, marks_, sim_.dt(), forward_reward_weight_);
    const bool healthy = is_healthy();
    const double survive = health_.survive(healthy);
    const double rewards = travel.forward + survive;
    const double ctrl_cost = this->control_cost();
    out.terminated = health_.ends(healthy);
    if (kVersion == 5) {
      const double contact_cost = this->contact_cost();
      out.reward = rewards - (ctrl_cost + contact_cost);
      InfoRow row = tell_place(out).real(travel.x_velocity).real(travel.y_velocity);
      row.real(survive).real(travel.forward).real(-ctrl_cost).real(-contact_cost);
    } else if (kVersion == 3) {
      const double contact_cost = this->contact_cost();
      out.reward = rewards - (ctrl_cost + contact_cost);
      InfoRow row(out);
      travel.tell(row.real(travel.forward).real(-ctrl_cost).real(survive).real(-contact_cost), after);
    } else if (kVersion == 2) {
      // In version 2's own order: the last bit may be another.
      const double forward = forward_reward_weight_ * (after[0] - marks_[0]) / sim_.dt();
      const double contact_cost = this->contact_cost();
      out.reward = forward - ctrl_cost - contact_cost + survive;
      InfoRow(out).real(forward).real(-ctrl_cost).real(survive).real(-contact_cost);
    } else {
      out.reward = rewards - ctrl_cost;
      InfoRow row(out);
      travel.tell(row.real(travel.forward).real(-ctrl_cost).real(survive), after);
    }
  }

 private:
  // Version 2 counts the bounds themselves as healthy, and a height that is not a number.
  bool is_healthy() const {
    const double z = sim_.data().qpos[2];
    return kVersion == 2 ? !(z < healthy_z_.low || z > healthy_z_.high) : healthy_z_.encloses(z);
  }

  double mass_center(int axis) const {
    double total = 0;
    for (int body = 0; body < sim_.model()->nbody; ++body) {
      total += sim_.model()->body_mass[body] * sim_.data().xipos[3 * body + axis];
    }
    return total / total_mass_;
  }

  double forward_reward_weight_, total_mass_ = 0;
  HealthTerms<kVersion> health_;
  Range healthy_z_;
};

}  // namespace

ENVFLEET_ENV("Humanoid-v5", Humanoid<5>)
ENVFLEET_ENV("Humanoid-v4", Humanoid<4>)
ENVFLEET_ENV("Humanoid-v3", Humanoid<3>)
ENVFLEET_ENV("Humanoid-v2", Humanoid<2>)

}  // namespace envfleet::mujoco
