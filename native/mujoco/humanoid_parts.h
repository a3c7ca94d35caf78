// HumanoidParts: the observation that Humanoid and HumanoidStandup share.
//
// Version 5 leaves out the world body's rows and the root's actuator forces, which are always
// zero, and lets the user choose; versions before it show everything.
#pragma once

#include "mujoco_env.h"

namespace envfleet::mujoco {

struct HumanoidParts {
  static constexpr int kRootVelocities = 6;  // of the free joint, which no actuator drives

  HumanoidParts(const Config& config, bool is_v5, bool excludes_positions)
      : is_v5(is_v5),
        skipped(excludes_positions ? 2 : 0),
        has_cinert(!is_v5 || config.flag("include_cinert_in_observation")),
        has_cvel(!is_v5 || config.flag("include_cvel_in_observation")),
        has_qfrc_actuator(!is_v5 || config.flag("include_qfrc_actuator_in_observation")),
        has_cfrc_ext(!is_v5 || config.flag("include_cfrc_ext_in_observation")) {}

  static void add_params(Params& own) {
    own.push_back({"include_cinert_in_observation", true, "masses and inertias of the bodies"});
    own.push_back({"include_cvel_in_observation", true, "velocities of the bodies"});
    own.push_back({"include_qfrc_actuator_in_observation", true, "forces of the actuators"});
    own.push_back({"include_cfrc_ext_in_observation", true, "contact forces on the bodies"});
  }

  int size(const Model& model) const {
    const int bodies = model->nbody - first_body();
    return model->nq - skipped + model->nv + (has_cinert ? 10 * bodies : 0) + (has_cvel ? 6 * bodies : 0) +
           (has_qfrc_actuator ? model->nv - first_velocity() : 0) + (has_cfrc_ext ? 6 * bodies : 0);
  }

  void write(const Simulation& sim, double* to) const {
    const mjData& data = sim.data();
    const Model& model = sim.model();
    to = std::copy(data.qpos + skipped, data.qpos + model->nq, to);
    to = std::copy_n(data.qvel, model->nv, to);
    if (has_cinert) to = std::copy(data.cinert + 10 * first_body(), data.cinert + 10 * model->nbody, to);
    if (has_cvel) to = std::copy(data.cvel + 6 * first_body(), data.cvel + 6 * model->nbody, to);
    if (has_qfrc_actuator) to = std::copy(data.qfrc_actuator + first_velocity(), data.qfrc_actuator + model->nv, to);
    if (has_cfrc_ext) to = std::copy(data.cfrc_ext + 6 * first_body(), data.cfrc_ext + 6 * model->nbody, to);
  }

  // Where a model has no tendons, the columns are left out: an info column has at least one element.
  static void tendon_infos(const Model& model, Spec& spec) {
    if (model->ntendon == 0) return;
    for (const char* name : {"tendon_length", "tendon_velocity"}) spec.info(name, box<double>({model->ntendon}));
  }
  static InfoRow& tell_tendons(const Simulation& sim, InfoRow& row) {
    const int count = static_cast<int>(sim.model()->ntendon);
    return row.reals(sim.data().ten_length, count).reals(sim.data().ten_velocity, count);
  }

  int first_body() const { return is_v5 ? 1 : 0; }
  int first_velocity() const { return is_v5 ? kRootVelocities : 0; }

  bool is_v5;
  int skipped;
  bool has_cinert, has_cvel, has_qfrc_actuator, has_cfrc_ext;
};

}  // namespace envfleet::mujoco
