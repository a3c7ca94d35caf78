// Robots that walk, hop and run: cheetah, walker, hopper, humanoid, humanoid_CMU.
#include "task.h"

namespace envfleet::dm_control {

namespace {

class Cheetah : public Task {
 public:
  explicit Cheetah(Physics& physics) : Task(physics), velocity_(physics.sensor("torso_subtreelinvel")) {}

  std::vector<Observed> layout() const override {
    return {{"position", {physics_.model().nq - 1}}, {"velocity", {physics_.model().nv}}};
  }
  void start(RandomState& random) override {
    const mjModel& model = physics_.model();
    for (int joint = 0; joint < model.njnt; ++joint) {
      const double* range = model.jnt_range + 2 * joint;
      if (model.jnt_limited[joint] != 0) physics_.qpos()[joint] = random.uniform(range[0], range[1]);
    }
    physics_.step(200);  // until it rests on the floor
    physics_.data().time = 0;
  }
  void observe(double* to) const override { write_velocities(write_positions(to, 1)); }
  double reward() const override { return tolerance(*sensor_values(velocity_), above(10, 10)); }

 private:
  int velocity_;
};

class Walker : public Task {
 public:
  Walker(Physics& physics, double speed)
      : Task(physics), speed_(speed), torso_(physics.body("torso")), velocity_(physics.sensor("torso_subtreelinvel")) {}

  std::vector<Observed> layout() const override {
    return {{"orientations", {2 * (physics_.model().nbody - 1)}}, {"height", {}}, {"velocity", {physics_.model().nv}}};
  }
  void start(RandomState& random) override { randomize_joints(physics_, random); }
  void observe(double* to) const override {
    for (int body = 1; body < physics_.model().nbody; ++body) {
      *to++ = physics_.xmat(body)[kXX];
      *to++ = physics_.xmat(body)[kXZ];
    }
    *to++ = physics_.xpos(torso_)[2];
    write_velocities(to);
  }
  double reward() const override {
    const double standing = tolerance(physics_.xpos(torso_)[2], {1.2, infinity, 1.2 / 2});
    const double upright = (1 + physics_.xmat(torso_)[kZZ]) / 2;
    const double stand_reward = (3 * standing + upright) / 4;
    if (speed_ == 0) return stand_reward;
    const double move_reward = tolerance(*sensor_values(velocity_), above(speed_, speed_ / 2, 0.5));
    return stand_reward * (5 * move_reward + 1) / 6;
  }

 private:
  double speed_;
  int torso_, velocity_;
};

class Hopper : public Task {
 public:
  Hopper(Physics& physics, bool hops)
      : Task(physics),
        hops_(hops),
        torso_(physics.body("torso")),
        foot_(physics.body("foot")),
        velocity_(physics.sensor("torso_subtreelinvel")),
        touch_(sensors({"touch_toe", "touch_heel"})) {}

  std::vector<Observed> layout() const override {
    return {{"position", {physics_.model().nq - 1}}, {"velocity", {physics_.model().nv}}, {"touch", {2}}};
  }
  void start(RandomState& random) override { randomize_joints(physics_, random); }
  void observe(double* to) const override {
    to = write_velocities(write_positions(to, 1));
    write_sensors(to, touch_);
    numpy::log1p(to, to, 2);
  }
  double reward() const override {
    const double* const centers = physics_.data().xipos;
    const double standing = tolerance(centers[3 * torso_ + 2] - centers[3 * foot_ + 2], {0.6, 2});
    if (hops_) return standing * tolerance(*sensor_values(velocity_), above(2, 2 / 2., 0.5));
    return standing * ((mean_small_control() + 4) / 5);
  }

 private:
  bool hops_;
  int torso_, foot_, velocity_;
  std::vector<int> touch_;
};

// The parts of a humanoid by the names of its model.
struct HumanoidNames {
  const char* torso;
  const char* velocity;
  const char* limbs[4];
  MatrixElement upright;  // the axis of the torso that points upwards
};
constexpr HumanoidNames kHumanoid{
    "torso", "torso_subtreelinvel", {"left_hand", "left_foot", "right_hand", "right_foot"}, kZZ};
constexpr HumanoidNames kHumanoidCmu{"thorax", "thorax_subtreelinvel", {"lhand", "lfoot", "rhand", "rfoot"}, kZY};

class Humanoid : public Task {
 public:
  Humanoid(Physics& physics, const HumanoidNames& names, double speed, bool observes_state)
      : Task(physics),
        speed_(speed),
        observes_state_(observes_state),
        upright_(names.upright),
        torso_(physics.body(names.torso)),
        head_(physics.body("head")),
        velocity_(physics.sensor(names.velocity)) {
    for (const char* limb : names.limbs) limbs_.push_back(physics.body(limb));
  }

  std::vector<Observed> layout() const override {
    const std::int64_t num_positions = physics_.model().nq, num_velocities = physics_.model().nv;
    if (observes_state_) return {{"position", {num_positions}}, {"velocity", {num_velocities}}};
    return {{"joint_angles", {num_positions - 7}},
            {"head_height", {}},
            {"extremities", {12}},
            {"torso_vertical", {3}},
            {"com_velocity", {3}},
            {"velocity", {num_velocities}}};
  }
  void start(RandomState& random) override {
    do {
      randomize_joints(physics_, random);
      physics_.after_reset();
    } while (is_colliding());
  }
  void observe(double* to) const override {
    if (observes_state_) {
      write_velocities(write_positions(to));
      return;
    }
    to = write_positions(to, 7);
    *to++ = physics_.xpos(head_)[2];
    for (const int limb : limbs_) {
      double offset[3];
      subtract(physics_.xpos(limb), physics_.xpos(torso_), offset);
      to = rotate(offset, physics_.xmat(torso_), to);
    }
    to = std::copy_n(physics_.xmat(torso_) + kZX, 3, to);
    to = std::copy_n(sensor_values(velocity_), 3, to);
    write_velocities(to);
  }
  double reward() const override {
    const double standing = tolerance(physics_.xpos(head_)[2], {1.4, infinity, 1.4 / 4});
    const double upright = tolerance(physics_.xmat(torso_)[upright_], above(0.9, 1.9));
    const double stand_reward = standing * upright;
    const double small_control = (4 + mean_small_control()) / 5;
    const double* const velocity = sensor_values(velocity_);
    if (speed_ == 0) return small_control * stand_reward * mean_tolerance({velocity, 2}, {.margin = 2});
    const double move = tolerance(norm(velocity, 2), above(speed_, speed_));
    return small_control * stand_reward * ((5 * move + 1) / 6);
  }

 private:
  double speed_;
  bool observes_state_;
  MatrixElement upright_;
  int torso_, head_, velocity_;
  std::vector<int> limbs_;
};

// The speed that a task asks for: of "stand" none, of "walk" 1.
double speed_of(std::string_view name, double run_speed) {
  return name.find("-run") != name.npos ? run_speed : name.ends_with("-walk") ? 1 : 0;
}

}  // namespace

std::unique_ptr<Task> make_walker_task(std::string_view name, Physics& physics) {
  if (name == "cheetah-run") return std::make_unique<Cheetah>(physics);
  if (name.starts_with("walker-")) return std::make_unique<Walker>(physics, speed_of(name, 8));
  if (name.starts_with("hopper-")) return std::make_unique<Hopper>(physics, name.ends_with("-hop"));
  const bool is_cmu = name.starts_with("humanoid_CMU-");
  if (!is_cmu && !name.starts_with("humanoid-")) return nullptr;
  return std::make_unique<Humanoid>(physics, is_cmu ? kHumanoidCmu : kHumanoid, speed_of(name, 10),
                                    name.ends_with("_pure_state"));
}

}  // namespace envfleet::dm_control
