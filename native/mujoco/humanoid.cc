// Humanoid: Gymnasium's Humanoid-v5 and -v4.
#include "humanoid_parts.h"

namespace envfleet::mujoco {

namespace {

constexpr double kHumanoidZ[2] = {1.0, 2.0};
constexpr double kHumanoidCosts[2] = {-infinity, 10.0};

template <int kVersion>
class Humanoid : public MujocoEnv<Humanoid<kVersion>> {
  using Base = MujocoEnv<Humanoid>;
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
    HumanoidParts::add_params(own);
    return with_common_params(task, own);
  }
  static void check(const Model& model, const Config&) { model.expect_sizes(3, HumanoidParts::kRootVelocities); }
  static int observation_size(const Model& model, const Config& config) { return parts(config).size(model); }
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
    for (const char* name : {"reward_linvel", "reward_quadctrl", "reward_alive", "x_position", "y_position",
                             "distance_from_origin", "x_velocity", "y_velocity", "forward_reward"}) {
      spec.info(name, scalar<double>(), EF_ON_STEP);
    }
  }

  explicit Humanoid(const Config& config)
      : Base(config, true),
        forward_reward_weight_(config.real("forward_reward_weight")),
        ctrl_cost_weight_(config.real("ctrl_cost_weight")),
        contact_cost_weight_(kVersion == 5 ? config.real("contact_cost_weight") : 0.0),
        contact_cost_range_(kVersion == 5 ? Range(config, "contact_cost_range") : Range(kHumanoidCosts)),
        healthy_reward_(config.real("healthy_reward")),
        healthy_z_(config, "healthy_z_range"),
        reset_noise_scale_(checked_scale(config)),
        parts_(parts(config)),
        terminate_when_unhealthy_(config.flag("terminate_when_unhealthy")) {
    const double* masses = sim_.model()->body_mass;
    total_mass_ = pairwise_sum<double>([masses](std::ptrdiff_t i) { return masses[i]; }, 0, sim_.model()->nbody);
  }

  void start(Rng& rng) { this->start_uniformly(rng, reset_noise_scale_); }
  void remember() {
    for (int axis = 0; axis < 2; ++axis) marks_[axis] = mass_center(axis);
  }
  void write(double* observation) const { parts_.write(sim_, observation); }

  void tell_start(Out& out) {
    if (kVersion == 5) tell_place(out);
  }

  void score(const float*, Out& out) {
    const double after[2] = {mass_center(0), mass_center(1)};
    const double x_velocity = (after[0] - marks_[0]) / sim_.dt();
    const double y_velocity = (after[1] - marks_[1]) / sim_.dt();
    const double forward = forward_reward_weight_ * x_velocity;
    const bool healthy = healthy_z_.encloses(sim_.data().qpos[2]);
    const bool counts = healthy || (kVersion == 4 && terminate_when_unhealthy_);
    const double survive = counts ? healthy_reward_ : 0.0 * healthy_reward_;
    const double rewards = forward + survive;
    const double ctrl_cost = ctrl_cost_weight_ * sum_of_squares(sim_.data().ctrl, sim_.model()->nu);
    out.terminated = !healthy && terminate_when_unhealthy_;
    if (kVersion == 5) {
      const std::span<const double> forces = sim_.contact_forces();
      const double raw_cost =
          contact_cost_weight_ * sum_of_squares(forces.data(), static_cast<std::ptrdiff_t>(forces.size()));
      const double contact_cost = clip(raw_cost, contact_cost_range_.low, contact_cost_range_.high);
      out.reward = rewards - (ctrl_cost + contact_cost);
      tell_place(out).real(x_velocity).real(y_velocity).real(survive).real(forward).real(-ctrl_cost).real(-contact_cost);
    } else {
      out.reward = rewards - ctrl_cost;
      InfoRow row(out);
      row.real(forward).real(-ctrl_cost).real(survive).real(after[0]).real(after[1]).real(norm(after, 2));
      row.real(x_velocity).real(y_velocity).real(forward);
    }
  }

 private:
  static HumanoidParts parts(const Config& config) {
    return {config, kVersion == 5, config.flag("exclude_current_positions_from_observation")};
  }

  InfoRow tell_place(Out& out) {
    const double* qpos = sim_.data().qpos;
    InfoRow row(out);
    row.real(qpos[0]).real(qpos[1]);
    HumanoidParts::tell_tendons(sim_, row).real(norm(qpos, 2));
    return row;
  }

  double mass_center(int axis) const {
    double total = 0;
    for (int body = 0; body < sim_.model()->nbody; ++body) {
      total += sim_.model()->body_mass[body] * sim_.data().xipos[3 * body + axis];
    }
    return total / total_mass_;
  }

  double forward_reward_weight_, ctrl_cost_weight_, contact_cost_weight_;
  Range contact_cost_range_;
  double healthy_reward_;
  Range healthy_z_;
  double reset_noise_scale_, total_mass_ = 0;
  HumanoidParts parts_;
  bool terminate_when_unhealthy_;
};

}  // namespace

ENVFLEET_ENV("Humanoid-v5", Humanoid<5>)
ENVFLEET_ENV("Humanoid-v4", Humanoid<4>)

}  // namespace envfleet::mujoco
