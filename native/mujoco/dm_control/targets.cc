// Tasks with a target: reacher, point_mass, ball_in_cup, finger, swimmer, fish.
#include <stdexcept>

#include "task.h"

namespace envfleet::dm_control {

namespace {

class Reacher : public Task {
 public:
  Reacher(Physics& physics, double target_size)
      : Task(physics), target_size_(target_size), target_(physics.geom("target")), finger_(physics.geom("finger")) {
    physics.modify("geom_pos", &mjModel::geom_pos, 3 * physics.model().ngeom);
    physics.modify("geom_size", &mjModel::geom_size, 3 * physics.model().ngeom);
  }

  std::vector<Observed> layout() const override {
    return {{"position", {physics_.model().nq}}, {"to_target", {2}}, {"velocity", {physics_.model().nv}}};
  }
  void start(RandomState& random) override {
    physics_.model().geom_size[3 * target_] = target_size_;
    randomize_joints(physics_, random);
    const double angle = random.uniform(0, 2 * kPi);
    const double radius = random.uniform(.05, .20);
    physics_.model().geom_pos[3 * target_] = radius * numpy::sin(angle);
    physics_.model().geom_pos[3 * target_ + 1] = radius * numpy::cos(angle);
  }
  void observe(double* to) const override {
    to = write_positions(to);
    to = subtract(physics_.geom_xpos(target_), physics_.geom_xpos(finger_), to, 2);
    write_velocities(to);
  }
  double reward() const override {
    const double radii = physics_.geom_size(target_) + physics_.geom_size(finger_);
    return tolerance(distance(physics_.geom_xpos(target_), physics_.geom_xpos(finger_), 2), {0, radii});
  }

 private:
  double target_size_;
  int target_, finger_;
};

class PointMass : public Task {
 public:
  PointMass(Physics& physics, bool has_random_gains)
      : Task(physics),
        has_random_gains_(has_random_gains),
        target_(physics.geom("target")),
        mass_(physics.geom("pointmass")) {
    if (has_random_gains) physics.modify("wrap_prm", &mjModel::wrap_prm, physics.model().nwrap);
  }

  std::vector<Observed> layout() const override {
    return {{"position", {physics_.model().nq}}, {"velocity", {physics_.model().nv}}};
  }
  void start(RandomState& random) override {
    randomize_joints(physics_, random);
    if (!has_random_gains_) return;
    double first[2], second[2];
    draw_direction(random, first);
    do {
      draw_direction(random, second);
    } while (std::abs(dot(first, second, 2)) > 0.9);
    std::copy_n(first, 2, physics_.model().wrap_prm);
    std::copy_n(second, 2, physics_.model().wrap_prm + 2);
  }
  void observe(double* to) const override { write_velocities(write_positions(to)); }
  double reward() const override {
    const double target_size = physics_.geom_size(target_);
    const double near_target =
        tolerance(distance(physics_.geom_xpos(target_), physics_.geom_xpos(mass_)), {0, target_size, target_size});
    return near_target * ((mean_small_control() + 4) / 5);
  }

 private:
  static void draw_direction(RandomState& random, double (&direction)[2]) {
    for (double& value : direction) value = random.randn();
    normalize(direction);
  }

  bool has_random_gains_;
  int target_, mass_;
};

class BallInCup : public Task {
 public:
  explicit BallInCup(Physics& physics)
      : Task(physics),
        ball_(physics.body("ball")),
        ball_geom_(physics.geom("ball")),
        target_(physics.site("target")),
        ball_x_(physics.joint_position("ball_x")),
        ball_z_(physics.joint_position("ball_z")) {}

  std::vector<Observed> layout() const override {
    return {{"position", {physics_.model().nq}}, {"velocity", {physics_.model().nv}}};
  }
  void start(RandomState& random) override {
    do {
      physics_.qpos()[ball_x_] = random.uniform(-.2, .2);
      physics_.qpos()[ball_z_] = random.uniform(.2, .5);
      physics_.after_reset();
    } while (is_colliding());
  }
  void observe(double* to) const override { write_velocities(write_positions(to)); }
  double reward() const override {
    for (const int axis : {0, 2}) {
      const double offset = std::abs(physics_.site_xpos(target_)[axis] - physics_.xpos(ball_)[axis]);
      if (!(offset < physics_.model().site_size[3 * target_ + axis] - physics_.geom_size(ball_geom_))) return 0;
    }
    return 1;
  }

 private:
  int ball_, ball_geom_, target_, ball_x_, ball_z_;
};

class Finger : public Task {
 public:
  // target_radius: 0 to spin the body, otherwise to turn it to a target.
  Finger(Physics& physics, double target_radius)
      : Task(physics),
        target_radius_(target_radius),
        joints_(sensors({"proximal", "distal"})),
        velocities_(sensors({"proximal_velocity", "distal_velocity", "hinge_velocity"})),
        touch_(sensors({"touchtop", "touchbottom"})),
        tip_(physics.sensor("tip")),
        spinner_(physics.sensor("spinner")),
        target_(physics.sensor("target")),
        target_site_(physics.site("target")),
        cap_(physics.geom("cap1")),
        hinge_(physics.id(mjOBJ_JOINT, "hinge")) {
    const mjModel& model = physics.model();
    if (target_radius > 0) {
      physics.modify("site_pos", &mjModel::site_pos, 3 * model.nsite);
      physics.modify("site_size", &mjModel::site_size, 3 * model.nsite);
    } else {
      physics.modify("dof_damping", &mjModel::dof_damping, model.nv);
    }
  }

  std::vector<Observed> layout() const override {
    std::vector<Observed> all = {{"position", {4}}, {"velocity", {3}}, {"touch", {2}}};
    if (target_radius_ > 0) {
      all.push_back({"target_position", {2}});
      all.push_back({"dist_to_target", {}});
    }
    return all;
  }
  void start(RandomState& random) override {
    mjModel& model = physics_.model();
    if (target_radius_ > 0) {
      const double angle = random.uniform(-kPi, kPi);
      const double* const size = model.geom_size + 3 * cap_;
      const double radius = size[0] + size[1] + size[2];
      const double* const anchor = physics_.data().xanchor + 3 * hinge_;
      model.site_pos[3 * target_site_] = anchor[0] + radius * numpy::sin(angle);
      model.site_pos[3 * target_site_ + 2] = anchor[2] + radius * numpy::cos(angle);
      model.site_size[3 * target_site_] = target_radius_;
    } else {
      model.dof_damping[model.jnt_dofadr[hinge_]] = .03;
    }
    for (int attempt = 0; attempt < 1000; ++attempt) {
      randomize_joints(physics_, random);
      physics_.after_reset();
      if (!is_colliding()) return;
    }
    throw std::runtime_error("no state without a collision was found in 1000 attempts");
  }
  void observe(double* to) const override {
    to = write_sensors(to, joints_);
    to = write_from_spinner(tip_, to);
    to = write_sensors(to, velocities_);
    write_sensors(to, touch_);
    numpy::log1p(to, to, 2);
    to += 2;
    if (target_radius_ > 0) *write_from_spinner(target_, to) = distance_to_target();
  }
  double reward() const override {
    if (target_radius_ > 0) return distance_to_target() <= 0;
    return physics_.data().sensordata[velocities_[2]] <= -15.0;
  }

 private:
  // Its x and z relative to the spinner.
  double* write_from_spinner(int sensor, double* to) const {
    for (const int axis : {0, 2}) *to++ = sensor_values(sensor)[axis] - sensor_values(spinner_)[axis];
    return to;
  }
  double distance_to_target() const {
    double target[2], tip[2];
    write_from_spinner(target_, target);
    write_from_spinner(tip_, tip);
    return distance(target, tip, 2) - physics_.site_size(target_site_);
  }

  double target_radius_;
  std::vector<int> joints_, velocities_, touch_;
  int tip_, spinner_, target_, target_site_, cap_, hinge_;
};

class Swimmer : public Task {
 public:
  explicit Swimmer(Physics& physics)
      : Task(physics),
        head_(physics.body("head")),
        nose_(physics.geom("nose")),
        target_(physics.geom("target")),
        light_(physics.id(mjOBJ_LIGHT, "target_light")) {
    physics.modify("geom_pos", &mjModel::geom_pos, 3 * physics.model().ngeom);
    physics.modify("light_pos", &mjModel::light_pos, 3 * physics.model().nlight);
  }

  std::vector<Observed> layout() const override {
    return {{"joints", {physics_.model().nq - 3}}, {"to_target", {2}}, {"body_velocities", {3 * num_segments()}}};
  }
  void start(RandomState& random) override {
    randomize_joints(physics_, random);
    const double half_width = random.random_sample() < .2 ? .3 : 2;
    for (int axis = 0; axis < 2; ++axis) {
      const double position = random.uniform(-half_width, half_width);
      physics_.model().geom_pos[3 * target_ + axis] = position;
      physics_.model().light_pos[3 * light_ + axis] = position;
    }
  }
  void observe(double* to) const override {
    to = write_positions(to, 3);
    to = write_to_target(to);
    // Velocity and rotation of each segment: x and y of the one, z of the other.
    for (int segment = 0; segment < num_segments(); ++segment) {
      for (const int value : {0, 1, 5}) *to++ = physics_.data().sensordata[kOtherSensors + 6 * segment + value];
    }
  }
  double reward() const override {
    const double target_size = physics_.geom_size(target_);
    double to_target[2];
    write_to_target(to_target);
    return tolerance(norm(to_target, 2), {0, target_size, 5 * target_size, Sigmoid::kLongTail});
  }

 private:
  static constexpr int kOtherSensors = 12;  // of the nose and the head

  int num_segments() const { return static_cast<int>(physics_.model().nsensordata - kOtherSensors) / 6; }
  double* write_to_target(double* to) const {
    double offset[3];
    subtract(physics_.geom_xpos(target_), physics_.geom_xpos(nose_), offset);
    return rotate(offset, physics_.xmat(head_), to, 2);
  }

  int head_, nose_, target_, light_;
};

constexpr const char* kFishJoints[] = {"tail1",          "tail_twist",   "tail2",        "finright_roll",
                                       "finright_pitch", "finleft_roll", "finleft_pitch"};

class Fish : public Task {
 public:
  Fish(Physics& physics, bool swims)
      : Task(physics),
        swims_(swims),
        torso_(physics.body("torso")),
        mouth_(physics.geom("mouth")),
        target_(physics.geom("target")),
        root_(physics.joint_position("root")) {
    for (const char* joint : kFishJoints) joints_.push_back(physics.joint_position(joint));
    if (swims) physics.modify("geom_pos", &mjModel::geom_pos, 3 * physics.model().ngeom);
  }

  std::vector<Observed> layout() const override {
    const Observed velocity{"velocity", {physics_.model().nv}};
    const Observed joint_angles{"joint_angles", {static_cast<std::int64_t>(joints_.size())}};
    if (swims_) return {joint_angles, {"upright", {}}, {"target", {3}}, velocity};
    return {joint_angles, {"upright", {}}, velocity};
  }
  void start(RandomState& random) override {
    const std::span<double> orientation = physics_.qpos().subspan(static_cast<std::size_t>(root_) + 3, 4);
    for (double& value : orientation) value = random.randn();
    normalize(orientation);
    for (const int joint : joints_) physics_.qpos()[joint] = random.uniform(-.2, .2);
    if (!swims_) return;
    double* const target = physics_.model().geom_pos + 3 * target_;
    target[0] = random.uniform(-.4, .4);
    target[1] = random.uniform(-.4, .4);
    target[2] = random.uniform(.1, .3);
  }
  void observe(double* to) const override {
    for (const int joint : joints_) *to++ = physics_.data().qpos[joint];
    *to++ = upright();
    if (swims_) to = write_to_target(to);
    write_velocities(to);
  }
  double reward() const override {
    if (!swims_) return tolerance(upright(), {1, 1, 1});
    const double radii = physics_.geom_size(mouth_) + physics_.geom_size(target_);
    double to_target[3];
    write_to_target(to_target);
    const double in_target = tolerance(norm(to_target, 3), {0, radii, 2 * radii});
    return (7 * in_target + 0.5 * (upright() + 1)) / 8;
  }

 private:
  double upright() const { return physics_.xmat(torso_)[kZZ]; }
  double* write_to_target(double* to) const {
    double offset[3];
    subtract(physics_.geom_xpos(target_), physics_.geom_xpos(mouth_), offset);
    return rotate(offset, physics_.data().geom_xmat + 9 * mouth_, to);
  }

  bool swims_;
  int torso_, mouth_, target_, root_;
  std::vector<int> joints_;
};

}  // namespace

std::unique_ptr<Task> make_target_task(std::string_view name, Physics& physics) {
  if (name.starts_with("reacher-")) return std::make_unique<Reacher>(physics, name.ends_with("-easy") ? .05 : .015);
  if (name.starts_with("point_mass-")) return std::make_unique<PointMass>(physics, name.ends_with("-hard"));
  if (name == "ball_in_cup-catch") return std::make_unique<BallInCup>(physics);
  if (name.starts_with("finger-")) {
    return std::make_unique<Finger>(physics, name.ends_with("_easy") ? 0.07 : name.ends_with("_hard") ? 0.03 : 0);
  }
  if (name.starts_with("swimmer-")) return std::make_unique<Swimmer>(physics);
  if (name.starts_with("fish-")) return std::make_unique<Fish>(physics, name.ends_with("-swim"));
  return nullptr;
}

}  // namespace envfleet::dm_control
