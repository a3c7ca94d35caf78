// dog: stand, walk, trot, run, fetch.
#include <algorithm>
#include <array>
#include <cmath>

#include "task.h"

namespace envfleet::dm_control {

namespace {

class Dog : public Task {
 public:
  // speed: 0 to stand still.
  Dog(Physics& physics, double speed)
      : Task(physics),
        speed_(speed),
        torso_(physics.body("torso")),
        pelvis_(physics.body("pelvis")),
        skull_(physics.body("skull")),
        velocity_(physics.sensor("torso_linvel")),
        root_(physics.joint_position("root")),
        inertial_(sensors({"accelerometer", "velocimeter", "gyro"})),
        foot_forces_(sensors({"foot_L", "foot_R", "hand_L", "hand_R"})),
        touch_(sensors({"palm_L", "palm_R", "sole_L", "sole_R"})) {
    const mjModel& model = physics.model();
    for (int joint = 0; joint < model.njnt; ++joint) {
      if (model.jnt_type[joint] == mjJNT_HINGE) hinges_.push_back(joint);
    }
  }

  std::vector<Observed> layout() const override {
    const auto num_hinges = static_cast<std::int64_t>(hinges_.size());
    return {{"joint_angles", {num_hinges}},
            {"joint_velocites", {num_hinges}},  // as dm_control spells it
            {"torso_pelvis_height", {2}},
            {"z_projection", {9}},
            {"torso_com_velocity", {3}},
            {"inertial_sensors", {9}},
            {"foot_forces", {12}},
            {"touch_sensors", {4}},
            {"actuator_state", {physics_.model().na}}};
  }

  void start(RandomState& random) override {
    physics_.reset();
    const mjModel& model = physics_.model();
    stand_heights_ = {physics_.xpos(torso_)[2] * 0.9, physics_.xpos(pelvis_)[2] * 0.9};
    const double azimuth = random.uniform(0, 2 * kPi);
    double* const orientation = physics_.data().qpos + root_ + 3;
    orientation[0] = numpy::cos(azimuth / 2);
    orientation[1] = orientation[2] = 0;
    orientation[3] = numpy::sin(azimuth / 2);
    for (const int axis : {0, 1, 5}) physics_.data().qvel[axis] = 2 * random.randn();
    for (int i = 0; i < model.nu; ++i) {
      const double* const range = model.actuator_ctrlrange + 2 * i;
      physics_.data().act[i] = random.uniform(range[0], range[1]);
    }
  }

  void observe(double* to) const override { write_common(to); }

  double reward() const override { return standing() * (speed_ == 0 ? 1.0 : moving()); }

  void save(StateWriter& writer) override { writer("stand_heights", stand_heights_); }
  void load(StateReader& reader) override { reader("stand_heights", stand_heights_); }

 protected:
  double* write_common(double* to) const {
    const mjModel& model = physics_.model();
    const mjData& data = physics_.data();
    for (const int hinge : hinges_) *to++ = data.qpos[model.jnt_qposadr[hinge]];
    for (const int hinge : hinges_) *to++ = data.qvel[model.jnt_dofadr[hinge]];
    *to++ = physics_.xpos(torso_)[2];
    *to++ = physics_.xpos(pelvis_)[2];
    for (const int body : {skull_, torso_, pelvis_}) to = std::copy_n(physics_.xmat(body) + kZX, 3, to);
    to = rotate(sensor_values(velocity_), physics_.xmat(torso_), to);
    for (const int sensor : inertial_) to = std::copy_n(sensor_values(sensor), 3, to);
    for (const int sensor : foot_forces_) to = std::copy_n(sensor_values(sensor), 3, to);
    to = write_sensors(to, touch_);
    return std::copy_n(data.act, model.na, to);
  }

  // The product of the factors that all tasks have.
  double standing() const {
    const mjModel& model = physics_.model();
    const double upright_cosine = numpy::cos(degrees(30));
    const double weight = -model.opt.gravity[2] * model.body_subtreemass[torso_];
    double product = tolerance(physics_.xpos(torso_)[2], {stand_heights_[0], infinity, stand_heights_[0]});
    product *= tolerance(physics_.xpos(pelvis_)[2], {stand_heights_[1], infinity, stand_heights_[1]});
    for (const int body : {skull_, torso_, pelvis_}) {
      product *= tolerance(physics_.xmat(body)[kZZ], above(upright_cosine, upright_cosine + 1));
    }
    double touch = 0;
    for (const int sensor : touch_) touch += *sensor_values(sensor);
    return product * tolerance(touch, above(weight, weight, 0.9));
  }

 private:
  double moving() const {
    double velocity[3];
    rotate(sensor_values(velocity_), physics_.xmat(torso_), velocity);
    const double forward = tolerance(velocity[0], {speed_, 2 * speed_, std::max(1.0, speed_), Sigmoid::kLinear, 0});
    return (4 * forward + 1) / 5;
  }

  double speed_;
  int torso_, pelvis_, skull_, velocity_, root_;
  std::vector<int> inertial_, foot_forces_, touch_, hinges_;
  std::array<double, 2> stand_heights_{};  // of torso and pelvis, from which on it stands
};

class DogFetch : public Dog {
 public:
  explicit DogFetch(Physics& physics)
      : Dog(physics, 0),
        ball_(physics.geom("ball")),
        target_(physics.geom("target")),
        floor_(physics.geom("floor")),
        head_(physics.site("head")),
        upper_bite_(physics.site("upper_bite")),
        lower_bite_(physics.site("lower_bite")),
        ball_position_(physics.joint_position("ball_root")),
        ball_velocity_(physics.joint_velocity("ball_root")) {}

  std::vector<Observed> layout() const override {
    std::vector<Observed> all = Dog::layout();
    all.push_back({"ball_state", {6}});
    all.push_back({"target_position", {3}});
    return all;
  }

  void start(RandomState& random) override {
    Dog::start(random);
    const double radius = 0.75 * physics_.geom_size(floor_);
    const double azimuth = random.uniform(0, 2 * kPi);
    const double sine = numpy::sin(azimuth), cosine = numpy::cos(azimuth);
    double* const position = physics_.data().qpos + ball_position_;
    position[0] = radius * sine;
    position[1] = radius * cosine;
    position[2] = 0.05;
    const double height = random.uniform(0, 3);
    const double gravity = -physics_.model().opt.gravity[2];
    const double speed = random.uniform(0, 5);
    double* const velocity = physics_.data().qvel + ball_velocity_;
    velocity[0] = speed * (-sine + 0.05 * random.randn());
    velocity[1] = speed * (-cosine + 0.05 * random.randn());
    velocity[2] = std::sqrt(2 * gravity * height);
  }

  void observe(double* to) const override {
    to = write_common(to);
    const double* const frame = physics_.data().site_xmat + 9 * head_;
    double offset[3], head_velocity[6], ball_velocity[6];
    subtract(physics_.geom_xpos(ball_), physics_.site_xpos(head_), offset);
    to = rotate(offset, frame, to);
    // Rotations come first, then the velocities.
    mj_objectVelocity(&physics_.model(), &physics_.data(), mjOBJ_SITE, head_, head_velocity, 0);
    mj_objectVelocity(&physics_.model(), &physics_.data(), mjOBJ_GEOM, ball_, ball_velocity, 0);
    subtract(ball_velocity + 3, head_velocity + 3, offset);
    to = rotate(offset, frame, to);
    subtract(physics_.geom_xpos(target_), physics_.site_xpos(head_), offset);
    rotate(offset, frame, to);
  }

  double reward() const override {
    const double* const ball = physics_.geom_xpos(ball_);
    const double to_mouth =
        0.5 * (distance(ball, physics_.site_xpos(upper_bite_)) + distance(ball, physics_.site_xpos(lower_bite_)));
    const double to_target = distance(ball, physics_.geom_xpos(target_));
    const double target_radius = physics_.geom_size(target_);
    const double near_mouth = tolerance(to_mouth, {0, physics_.site_size(upper_bite_), 2, Sigmoid::kReciprocal});
    const double near_target = tolerance(to_target, {0, target_radius, physics_.geom_size(floor_), Sigmoid::kReciprocal});
    const double reach = to_target < 2 * target_radius ? 1 : (6 * near_mouth + 1) / 7;
    return standing() * reach * ((near_target + 1) / 2);
  }

 private:
  int ball_, target_, floor_, head_, upper_bite_, lower_bite_, ball_position_, ball_velocity_;
};

}  // namespace

std::unique_ptr<Task> make_dog_task(std::string_view name, Physics& physics) {
  if (name == "dog-stand") return std::make_unique<Dog>(physics, 0);
  if (name == "dog-walk") return std::make_unique<Dog>(physics, 1);
  if (name == "dog-trot") return std::make_unique<Dog>(physics, 3);
  if (name == "dog-run") return std::make_unique<Dog>(physics, 9);
  if (name == "dog-fetch") return std::make_unique<DogFetch>(physics);
  return nullptr;
}

}  // namespace envfleet::dm_control
