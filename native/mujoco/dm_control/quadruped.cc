// quadruped: walk, run, escape, fetch.
#include <cmath>
#include <initializer_list>
#include <stdexcept>

#include "cubic_zoom.h"
#include "task.h"

namespace envfleet::dm_control {

namespace {

class Quadruped : public Task {
 public:
  explicit Quadruped(Physics& physics)
      : Task(physics),
        torso_(physics.body("torso")),
        velocimeter_(physics.sensor("velocimeter")),
        imu_(sensors_of({mjSENS_GYRO, mjSENS_ACCELEROMETER})),
        force_torque_(sensors_of({mjSENS_FORCE, mjSENS_TORQUE})),
        root_(physics.joint_position("root")) {
    const mjModel& model = physics.model();
    for (int joint = 0; joint < model.njnt; ++joint) {
      if (model.jnt_type[joint] == mjJNT_HINGE) hinges_.push_back(joint);
    }
  }

  std::vector<Observed> layout() const override {
    const auto size = [](const std::vector<int>& values) { return static_cast<std::int64_t>(values.size()); };
    return {{"egocentric_state", {2 * size(hinges_) + physics_.model().na}},
            {"torso_velocity", {3}},
            {"torso_upright", {}},
            {"imu", {size(imu_)}},
            {"force_torque", {size(force_torque_)}}};
  }

  void observe(double* to) const override { write_common(to); }

 protected:
  double* write_common(double* to) const {
    const mjModel& model = physics_.model();
    const mjData& data = physics_.data();
    for (const int hinge : hinges_) *to++ = data.qpos[model.jnt_qposadr[hinge]];
    for (const int hinge : hinges_) *to++ = data.qvel[model.jnt_dofadr[hinge]];
    to = std::copy_n(data.act, model.na, to);
    to = std::copy_n(sensor_values(velocimeter_), 3, to);
    *to++ = physics_.xmat(torso_)[kZZ];
    to = write_sensors(to, imu_);
    double* const end = write_sensors(to, force_torque_);
    numpy::arcsinh(to, to, end - to);
    return end;
  }
  double upright_reward() const { return tolerance(physics_.xmat(torso_)[kZZ], above(1, 2)); }

  // Raises the body until nothing touches it.
  void place(const double (&orientation)[4], double x, double y) {
    double height = 0;
    for (int attempt = 0; attempt <= 10000; ++attempt, height += 0.01) {
      physics_.reset();
      double* const root = physics_.data().qpos + root_;
      root[0] = x;
      root[1] = y;
      root[2] = height;
      std::copy_n(orientation, 4, root + 3);
      try {
        physics_.after_reset();
      } catch (const PhysicsError&) {  // deep in the floor
      }
      if (!is_colliding()) return;
    }
    throw std::runtime_error("no state without a contact was found");
  }

  // With a random orientation.
  void start_in_the_middle(RandomState& random) {
    double orientation[4];
    for (double& value : orientation) value = random.randn();
    normalize(orientation);
    place(orientation, 0, 0);
  }

  // The places of all values of the sensors of these kinds, in the model's order.
  std::vector<int> sensors_of(std::initializer_list<mjtSensor> kinds) const {
    std::vector<int> found;
    const mjModel& model = physics_.model();
    for (int sensor = 0; sensor < model.nsensor; ++sensor) {
      if (std::find(kinds.begin(), kinds.end(), model.sensor_type[sensor]) == kinds.end()) continue;
      for (int i = 0; i < model.sensor_dim[sensor]; ++i) found.push_back(model.sensor_adr[sensor] + i);
    }
    return found;
  }

  int torso_, velocimeter_;

 private:
  std::vector<int> hinges_, imu_, force_torque_;
  int root_;
};

class QuadrupedMove : public Quadruped {
 public:
  QuadrupedMove(Physics& physics, double speed) : Quadruped(physics), speed_(speed) {}

  void start(RandomState& random) override { start_in_the_middle(random); }
  double reward() const override {
    return upright_reward() * tolerance(*sensor_values(velocimeter_), above(speed_, speed_, 0.5));
  }

 private:
  double speed_;
};

// A bowl with random bumps, which each episode draws again.
class QuadrupedEscape : public Quadruped {
 public:
  explicit QuadrupedEscape(Physics& physics)
      : Quadruped(physics),
        workspace_(physics.site("workspace")),
        rangefinders_(sensors_of({mjSENS_RANGEFINDER})),
        resolution_(physics.model().hfield_nrow[0]),
        terrain_size_(physics.model().hfield_size[0]) {
    if (physics.model().nhfield != 1 || physics.model().hfield_ncol[0] != resolution_) {
      throw std::invalid_argument("quadruped-escape expected a model with one square height field");
    }
    physics.modify("hfield_data", &mjModel::hfield_data, physics.model().nhfielddata);
  }

  std::vector<Observed> layout() const override {
    std::vector<Observed> all = Quadruped::layout();
    all.push_back({"origin", {3}});
    all.push_back({"rangefinder", {static_cast<std::int64_t>(rangefinders_.size())}});
    return all;
  }
  void start(RandomState& random) override {
    draw_terrain(random);
    start_in_the_middle(random);
  }
  void observe(double* to) const override {
    to = write_common(to);
    double* const origin = to;
    to = rotate(physics_.xpos(torso_), physics_.xmat(torso_), to);
    for (double* value = origin; value != to; ++value) *value = -*value;
    double* const end = write_sensors(to, rangefinders_);
    const std::vector<double> readings(to, end);
    numpy::tanh(to, to, end - to);
    for (const double reading : readings) {
      if (reading == kNoIntersection) *to = 1;
      ++to;
    }
  }
  double reward() const override {
    const double upright = numpy::cos(degrees(20));
    const double escape = tolerance(norm(physics_.site_xpos(workspace_), 3), above(terrain_size_, terrain_size_));
    return tolerance(physics_.xmat(torso_)[kZZ], above(upright, 1 + upright)) * escape;
  }

 private:
  static constexpr double kNoIntersection = -1;
  static constexpr double kSmoothness = 0.15;  // 0: the highest bumps; 1: none
  static constexpr double kBumpScale = 2;      // metres

  void draw_terrain(RandomState& random) {
    const int num_bumps = static_cast<int>(2 * terrain_size_ / kBumpScale);
    std::vector<double> bumps(static_cast<std::size_t>(num_bumps) * num_bumps);
    for (double& bump : bumps) bump = random.uniform(kSmoothness, 1);
    const std::vector<double> smooth = cubic_zoom(std::move(bumps), num_bumps, resolution_);
    if (bowl_.empty()) bowl_ = make_bowl();
    float* const heights = physics_.model().hfield_data + physics_.model().hfield_adr[0];
    for (std::size_t i = 0; i < bowl_.size(); ++i) heights[i] = static_cast<float>(bowl_[i] * smooth[i]);
  }

  std::vector<double> make_bowl() const {
    std::vector<double> bowl;
    const double step = 2.0 / (resolution_ - 1);
    for (int row = 0; row < resolution_; ++row) {
      for (int column = 0; column < resolution_; ++column) {
        const double x = column * step - 1, y = row * step - 1;
        bowl.push_back(2 * kPi * std::clamp(std::sqrt(x * x + y * y), 0.04, 1.0));
      }
    }
    numpy::cos(bowl.data(), bowl.data(), static_cast<std::int64_t>(bowl.size()));
    for (double& height : bowl) height = 0.5 - height / 2;
    return bowl;
  }

  int workspace_;
  std::vector<int> rangefinders_;
  int resolution_;            // of the height field, in values per side
  double terrain_size_;       // half a side, in metres
  std::vector<double> bowl_;  // computed in the first episode: a constructor has no numpy
};

class QuadrupedFetch : public Quadruped {
 public:
  explicit QuadrupedFetch(Physics& physics)
      : Quadruped(physics),
        ball_(physics.body("ball")),
        ball_geom_(physics.geom("ball")),
        floor_(physics.geom("floor")),
        target_(physics.site("target")),
        workspace_(physics.site("workspace")),
        ball_position_(physics.joint_position("ball_root")),
        ball_velocity_(physics.joint_velocity("ball_root")),
        root_velocity_(physics.joint_velocity("root")) {}

  std::vector<Observed> layout() const override {
    std::vector<Observed> all = Quadruped::layout();
    all.push_back({"ball_state", {9}});
    all.push_back({"target_position", {3}});
    return all;
  }
  void start(RandomState& random) override {
    const double azimuth = random.uniform(0, 2 * kPi);
    const double orientation[4] = {numpy::cos(azimuth / 2), 0, 0, numpy::sin(azimuth / 2)};
    const double radius = 0.9 * physics_.geom_size(floor_);
    const double x = random.uniform(-radius, radius);
    const double y = random.uniform(-radius, radius);
    place(orientation, x, y);
    double* const ball = physics_.data().qpos + ball_position_;
    for (int axis = 0; axis < 2; ++axis) ball[axis] = random.uniform(-radius, radius);
    ball[2] = 2;
    for (int axis = 0; axis < 2; ++axis) physics_.data().qvel[ball_velocity_ + axis] = 5 * random.randn();
  }
  void observe(double* to) const override {
    to = write_common(to);
    const double* const frame = physics_.xmat(torso_);
    const double* const qvel = physics_.data().qvel;
    double offset[3];
    subtract(physics_.xpos(ball_), physics_.xpos(torso_), offset);
    to = rotate_row(offset, frame, to);
    subtract(qvel + ball_velocity_, qvel + root_velocity_, offset);
    to = rotate_row(offset, frame, to);
    to = rotate_row(qvel + ball_velocity_ + 3, frame, to);
    subtract(physics_.site_xpos(target_), physics_.xpos(torso_), offset);
    rotate(offset, frame, to);
  }
  double reward() const override {
    const double arena = physics_.geom_size(floor_) * std::sqrt(2);
    const double reach_radius = physics_.site_size(workspace_) + physics_.geom_size(ball_geom_);
    const double reach = tolerance(distance(physics_.site_xpos(workspace_), physics_.xpos(ball_), 2),
                                   {0, reach_radius, arena, Sigmoid::kLinear, 0});
    const double fetch = tolerance(distance(physics_.site_xpos(target_), physics_.xpos(ball_), 2),
                                   {0, physics_.site_size(target_), arena, Sigmoid::kLinear, 0});
    return upright_reward() * (reach * (0.5 + 0.5 * fetch));
  }

 private:
  int ball_, ball_geom_, floor_, target_, workspace_, ball_position_, ball_velocity_, root_velocity_;
};

}  // namespace

std::unique_ptr<Task> make_quadruped_task(std::string_view name, Physics& physics) {
  if (name == "quadruped-walk") return std::make_unique<QuadrupedMove>(physics, 0.5);
  if (name == "quadruped-run") return std::make_unique<QuadrupedMove>(physics, 5);
  if (name == "quadruped-escape") return std::make_unique<QuadrupedEscape>(physics);
  if (name == "quadruped-fetch") return std::make_unique<QuadrupedFetch>(physics);
  return nullptr;
}

}  // namespace envfleet::dm_control
