// WalkerEnv<Self, kVersion>: the common base of Hopper and Walker2d, robots that move along x, upright in the plane of x
// and z. An env derives from it and has, besides task and params():
//
//   bool is_healthy() const;
#pragma once

#include "locomotion.h"

namespace envfleet::mujoco {

template <class Self, int kVersion>
class WalkerEnv : public MujocoEnv<Self> {
  using Base = MujocoEnv<Self>;

 public:
  static void check(const Model& model, const Config&) { model.expect_sizes(3, 1); }
  static int observation_size(const Model& model, const Config& config) {
    return Base::state_size(model, skipped_positions(config, 1));
  }
  static void infos(const Model&, const Config&, Spec& spec) { Base::walker_infos(spec, kVersion); }

  void start(Rng& rng) { this->start_uniformly(rng, reset_noise_scale_); }
  void remember() { this->marks_[0] = sim_.data().qpos[0]; }
  void write(double* observation) const { this->write_clipped_state(observation, skipped_); }

  void tell_start(Out& out) {
    if (kVersion == 5) InfoRow(out).real(sim_.data().qpos[0]).real(sim_.data().qpos[1] - sim_.init_qpos()[1]);
  }

  void score(const float* action, Out& out) {
    const bool is_healthy = static_cast<const Self&>(*this).is_healthy();
    this->template score_walker<kVersion>(action, out, is_healthy, forward_reward_weight_, ctrl_cost_weight_, health_.reward,
                                          health_.terminate_when_unhealthy);
  }

 protected:
  explicit WalkerEnv(const Config& config)
      : Base(config),
        forward_reward_weight_(config.real("forward_reward_weight")),
        ctrl_cost_weight_(config.real("ctrl_cost_weight")),
        reset_noise_scale_(checked_scale(config)),
        health_(config),
        healthy_z_(config, "healthy_z_range"),
        healthy_angle_(config, "healthy_angle_range"),
        skipped_(skipped_positions(config, 1)) {}

  // The definition of health that both share.
  bool stands() const { return healthy_z_.encloses(sim_.data().qpos[1]) && healthy_angle_.encloses(sim_.data().qpos[2]); }

  using Base::sim_;

 private:
  double forward_reward_weight_, ctrl_cost_weight_, reset_noise_scale_;
  HealthTerms<kVersion> health_;
  Range healthy_z_, healthy_angle_;
  int skipped_;
};

}  // namespace envfleet::mujoco
