// Physics: one env's simulation, stepped in the order of dm_control's mujoco.Physics.
//
// A task may change its model in each episode (where the target is). The mjModel here is a copy of the shared model's
// struct: options are its own, arrays are shared until modify() gives it one of its own.
//
// Thread safety: one thread at a time.
// Invariant: after reset(), after_reset() and step() what MuJoCo derives from positions and velocities is up to date.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "../state.h"
#include "envfleet/env.h"
#include "suite_model.h"

namespace envfleet::dm_control {

// An invalid simulation state: dm_control's PhysicsError.
struct PhysicsError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Physics {
 public:
  explicit Physics(SharedSuiteModel model);
  ~Physics() { keep_for_rebuild(std::move(shared_)); }
  Physics(const Physics&) = delete;
  Physics& operator=(const Physics&) = delete;

  mjModel& model() { return model_; }
  const mjModel& model() const { return model_; }
  mjData& data() { return *data_; }
  const mjData& data() const { return *data_; }
  const SuiteModel& suite_model() const { return *shared_; }
  std::span<double> qpos() { return {data_->qpos, static_cast<std::size_t>(model_.nq)}; }
  std::span<double> qvel() { return {data_->qvel, static_cast<std::size_t>(model_.nv)}; }
  std::span<const double> control() const { return {data_->ctrl, static_cast<std::size_t>(model_.nu)}; }

  // Ids by name; throw when the model has none of that name.
  int id(mjtObj kind, const char* name) const;
  int body(const char* name) const { return id(mjOBJ_BODY, name); }
  int geom(const char* name) const { return id(mjOBJ_GEOM, name); }
  int site(const char* name) const { return id(mjOBJ_SITE, name); }
  // Where the values of a sensor or a joint are.
  int sensor(const char* name) const { return model_.sensor_adr[id(mjOBJ_SENSOR, name)]; }
  int joint_position(const char* name) const { return model_.jnt_qposadr[id(mjOBJ_JOINT, name)]; }
  int joint_velocity(const char* name) const { return model_.jnt_dofadr[id(mjOBJ_JOINT, name)]; }

  const double* xpos(int body) const { return data_->xpos + 3 * body; }
  const double* xmat(int body) const { return data_->xmat + 9 * body; }
  const double* site_xpos(int site) const { return data_->site_xpos + 3 * site; }
  const double* geom_xpos(int geom) const { return data_->geom_xpos + 3 * geom; }
  double geom_size(int geom) const { return model_.geom_size[3 * geom]; }
  double site_size(int site) const { return model_.site_size[3 * site]; }

  // Gives this env an array of its own, which is saved with its state and shown to a renderer as "model_NAME".
  void modify(const char* name, mjtNum* mjModel::* array, std::int64_t count);
  void modify(const char* name, float* mjModel::* array, std::int64_t count);

  // mj_resetData() and forward dynamics without actuation. A PhysicsError is dropped, as reset_context() does.
  void reset();
  // Forward dynamics without actuation.
  void after_reset();
  // dm_control's legacy step: the second half of a step, whole steps, the first half of the next.
  void step(int count);
  bool has_contacts() const { return data_->ncon > 0; }

  void save(StateWriter& writer);
  void load(StateReader& reader);
  template <class Visitor>
  void fields(Visitor& visit) {
    viewed_.note(state());
    visit("time", data_->time);
    std::span<double> positions = qpos(), velocities = qvel();
    std::span<double> act(data_->act, static_cast<std::size_t>(model_.na));
    std::span<double> ctrl(data_->ctrl, static_cast<std::size_t>(model_.nu));
    std::span<double> warmstart(data_->qacc_warmstart, static_cast<std::size_t>(model_.nv));
    visit("qpos", positions);
    visit("qvel", velocities);
    visit("act", act);
    visit("ctrl", ctrl);
    visit("qacc_warmstart", warmstart);
    for_each_own_array([&](auto& own) {
      std::span values(own.values);
      visit(own.field.c_str(), values);
    });
  }
  // Whether a visitor wrote one of the fields.
  bool was_written() {
    return viewed_.was_written([this] { return state(); });
  }

 private:
  struct DeleteData {
    void operator()(mjData* data) const { mj_deleteData(data); }
  };
  template <class T>
  struct OwnArray {
    std::string field;
    std::vector<T> values;
  };

  template <class T>
  void own_array(std::vector<OwnArray<T>>& all, const char* name, T* mjModel::* array, std::int64_t count);
  template <class Visit>
  void for_each_own_array(Visit&& visit) {
    for (OwnArray<double>& own : own_arrays_) visit(own);
    for (OwnArray<float>& own : own_float_arrays_) visit(own);
  }
  template <class Body>
  void checked(Body&& body);
  // Runs body() with these mjtDisableBits set.
  template <class Body>
  void with_disabled(int features, Body&& body);
  // Runge-Kutta steps cannot be split in halves.
  bool has_split_steps() const { return model_.opt.integrator != mjINT_RK4; }
  std::vector<double> state();

  SharedSuiteModel shared_;
  mjModel model_;
  std::unique_ptr<mjData, DeleteData> data_;
  std::vector<OwnArray<double>> own_arrays_;
  std::vector<OwnArray<float>> own_float_arrays_;
  mujoco::ViewedState viewed_;
};

}  // namespace envfleet::dm_control
