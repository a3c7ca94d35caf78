// HumanoidEnv<Self, kVersion>: the common base of Humanoid and HumanoidStandup. An env derives from it and has, besides
// task, params() and infos():
//
//   static bool excludes_positions(const Config&); // x and y, from the observation
//   InfoRow tell_place(Out&) const;                // the infos of a reset, in version 5
//   void score(const float* action, Out&);
#pragma once

#include "humanoid_parts.h"

namespace envfleet::mujoco {

// The default range to which the contact cost is clipped.
inline constexpr double kHumanoidCosts[2] = {-infinity, 10.0};

template <class Self, int kVersion>
class HumanoidEnv : public MujocoEnv<Self> {
  using Base = MujocoEnv<Self>;

 public:
  static void check(const Model& model, const Config&) { model.expect_sizes(3, HumanoidParts::kRootVelocities); }
  static int observation_size(const Model& model, const Config& config) { return parts(config).size(model); }

  void start(Rng& rng) { this->start_uniformly(rng, reset_noise_scale_); }
  void write(double* observation) const { parts_.write(sim_, observation); }
  void tell_start(Out& out) {
    if (kVersion == 5) static_cast<const Self&>(*this).tell_place(out);
  }

 protected:
  HumanoidEnv(const Config& config, double reset_noise_scale, double ctrl_cost_weight, double contact_cost_weight,
              const Range& contact_cost_range)
      : Base(config, true),
        reset_noise_scale_(reset_noise_scale),
        ctrl_cost_weight_(ctrl_cost_weight),
        contact_cost_weight_(contact_cost_weight),
        contact_cost_range_(contact_cost_range),
        parts_(parts(config)) {}

  // The cost of the controls in the simulation, not of the action.
  double control_cost() const { return ctrl_cost_weight_ * sum_of_squares(sim_.data().ctrl, sim_.model()->nu); }
  double contact_cost() const {
    const std::span<const double> forces = sim_.contact_forces();
    const double raw = contact_cost_weight_ * sum_of_squares(forces.data(), static_cast<std::ptrdiff_t>(forces.size()));
    return clip(raw, contact_cost_range_.low, contact_cost_range_.high);
  }

  using Base::sim_;

 private:
  static HumanoidParts parts(const Config& config) { return {config, kVersion == 5, Self::excludes_positions(config)}; }

  double reset_noise_scale_, ctrl_cost_weight_, contact_cost_weight_;
  Range contact_cost_range_;
  HumanoidParts parts_;
};

}  // namespace envfleet::mujoco
