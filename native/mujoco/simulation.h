// Simulation: one env's mjData for a shared model, and the operations that all MuJoCo envs need.
//
// The calls and their order are those of Gymnasium's MujocoEnv: from the same start and controls, the same library computes
// the same numbers.
//
// Thread safety: one thread at a time.
// Invariant: after reset(), forward() or advance() the derived quantities (body positions, contact forces) are those of
// Gymnasium's mjData: after a step, those from before the last substep.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "envfleet/env.h"
#include "model.h"
#include "state.h"

namespace envfleet::mujoco {

class Simulation {
 public:
  Simulation(SharedModel model, std::int64_t frame_skip);
  ~Simulation() { keep_for_rebuild(std::move(model_)); }
  // Neither moved nor copied: a fleet builds its envs in place.
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  const Model& model() const { return *model_; }
  mjData& data() { return *data_; }
  const mjData& data() const { return *data_; }
  std::span<double> qpos() { return {data_->qpos, static_cast<std::size_t>(model()->nq)}; }
  std::span<double> qvel() { return {data_->qvel, static_cast<std::size_t>(model()->nv)}; }
  const std::vector<double>& init_qpos() const { return init_qpos_; }
  const std::vector<double>& init_qvel() const { return init_qvel_; }
  double dt() const { return model()->opt.timestep * static_cast<double>(frame_skip_); }
  std::span<double> contact_forces() const { return per_body(data_->cfrc_ext, 6); }
  // `width` values per body.
  std::span<double> per_body(double* values, int width) const {
    return {values, static_cast<std::size_t>(model()->nbody) * width};
  }

  void reset();
  void forward();
  // frame_skip substeps with one control; then the contact forces, if the env reads them.
  void advance(const float* control, bool with_contact_forces);

  // Everything that the next step depends on. load() throws if the bytes belong to another model.
  void save(StateWriter& writer);
  void load(StateReader& reader);

  template <class Visitor>
  void fields(Visitor& visit) {
    viewed_.note(state());
    const auto size = [](auto count) { return static_cast<std::size_t>(count); };
    visit("time", data_->time);
    std::span<double> positions = qpos(), velocities = qvel();
    std::span<double> act(data_->act, size(model()->na)), ctrl(data_->ctrl, size(model()->nu));
    std::span<double> warmstart(data_->qacc_warmstart, size(model()->nv)), applied(data_->qfrc_applied, size(model()->nv));
    std::span<double> body_applied = per_body(data_->xfrc_applied, 6);
    std::span<double> mocap_pos(data_->mocap_pos, 3 * size(model()->nmocap)),
        mocap_quat(data_->mocap_quat, 4 * size(model()->nmocap));
    visit("qpos", positions);
    visit("qvel", velocities);
    visit("act", act);
    visit("ctrl", ctrl);
    visit("qacc_warmstart", warmstart);
    visit("qfrc_applied", applied);
    visit("xfrc_applied", body_applied);
    visit("mocap_pos", mocap_pos);
    visit("mocap_quat", mocap_quat);
    visit("init_qpos", init_qpos_fields());
    visit("init_qvel", init_qvel_fields());
    visit("frame_skip", frame_skip_);
  }
  // Whether a visitor wrote one of the fields that make up the state.
  bool was_written() {
    return viewed_.was_written([this] { return state(); });
  }

 private:
  struct DeleteData {
    void operator()(mjData* data) const { mj_deleteData(data); }
  };

  std::span<double>& init_qpos_fields() { return init_views_[0] = std::span<double>(init_qpos_); }
  std::span<double>& init_qvel_fields() { return init_views_[1] = std::span<double>(init_qvel_); }
  std::vector<double> state() const { return integration_state(model_->raw(), data_.get()); }

  SharedModel model_;
  std::unique_ptr<mjData, DeleteData> data_;
  std::int64_t frame_skip_;
  std::vector<double> init_qpos_, init_qvel_;
  std::span<double> init_views_[2];  // of a fixed size, unlike the vectors
  ViewedState viewed_;
};

}  // namespace envfleet::mujoco
