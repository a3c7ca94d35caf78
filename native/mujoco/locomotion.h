// Reward terms and infos that the locomotion envs share.
//
// Sums and products are in Gymnasium's order, so that rewards equal Gymnasium's to the last bit.
#pragma once

#include "mujoco_env.h"

namespace envfleet::mujoco {

// How many of the `count` root positions are excluded from the observation.
inline int skipped_positions(const Config& config, int count) {
  return config.flag("exclude_current_positions_from_observation") ? count : 0;
}

// In the action's float32, as numpy computes it.
inline float control_cost(double weight, const float* action, const Simulation& sim) {
  return static_cast<float>(weight) * sum_of_squares(action, sim.model()->nu);
}

// The reward and termination that depend on a robot's health.
template <int kVersion>
struct HealthTerms {
  explicit HealthTerms(const Config& config)
      : reward(config.real("healthy_reward")), terminate_when_unhealthy(config.flag("terminate_when_unhealthy")) {}

  double survive(bool is_healthy) const {
    // Versions before 5 also reward an unhealthy step if it is the last one.
    const bool counts = is_healthy || (kVersion < 5 && terminate_when_unhealthy);
    return counts ? reward : 0.0 * reward;
  }
  bool ends(bool is_healthy) const { return !is_healthy && terminate_when_unhealthy; }

  double reward;
  bool terminate_when_unhealthy;
};

// A robot's position in the plane of x and y: three info columns.
inline InfoRow& tell_place(InfoRow& row, const double* place) {
  return row.real(place[0]).real(place[1]).real(norm(place, 2));
}

// A step's displacement in that plane; x is forward.
struct Travel {
  Travel(const double* after, const std::array<double, 3>& before, double dt, double forward_reward_weight)
      : x_velocity((after[0] - before[0]) / dt),
        y_velocity((after[1] - before[1]) / dt),
        forward(forward_reward_weight * x_velocity) {}

  // The columns that tell() writes, on a step. A reset of version 5 writes the first three, with tell_place().
  static void infos(Spec& spec, bool is_v5) {
    for (const char* name : {"x_position", "y_position", "distance_from_origin"}) {
      spec.info(name, scalar<double>(), is_v5 ? EF_ON_STEP | EF_ON_RESET : EF_ON_STEP);
    }
    for (const char* name : {"x_velocity", "y_velocity", is_v5 ? "reward_forward" : "forward_reward"}) {
      spec.info(name, scalar<double>(), EF_ON_STEP);
    }
  }
  InfoRow& tell(InfoRow& row, const double* place) const {
    return tell_place(row, place).real(x_velocity).real(y_velocity).real(forward);
  }

  double x_velocity, y_velocity, forward;
};

}  // namespace envfleet::mujoco
