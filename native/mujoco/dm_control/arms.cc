// Planar arms with a hand: manipulator, stacker.
#include <algorithm>
#include <string>

#include "task.h"

namespace envfleet::dm_control {

namespace {

constexpr const char* kArmJoints[] = {"arm_root", "arm_shoulder", "arm_elbow", "arm_wrist",
                                      "finger",   "fingertip",    "thumb",     "thumbtip"};
constexpr int kNumArmJoints = 8;

class Arm : public Task {
 protected:
  explicit Arm(Physics& physics)
      : Task(physics),
        hand_(physics.body("hand")),
        grasp_(physics.site("grasp")),
        finger_(physics.joint_position("finger")),
        thumb_(physics.joint_position("thumb")) {
    for (const char* joint : kArmJoints) joints_.push_back(physics.id(mjOBJ_JOINT, joint));
    physics.modify("body_pos", &mjModel::body_pos, 3 * physics.model().nbody);
  }

  void draw_arm(RandomState& random) {
    const mjModel& model = physics_.model();
    for (const int joint : joints_) {
      const double* const range = model.jnt_range + 2 * joint;
      const bool is_limited = model.jnt_limited[joint] != 0;
      physics_.qpos()[model.jnt_qposadr[joint]] = random.uniform(is_limited ? range[0] : -kPi, is_limited ? range[1] : kPi);
    }
    physics_.qpos()[finger_] = physics_.qpos()[thumb_];  // a symmetric hand
  }
  // The sine and cosine of each joint, then the velocities.
  double* write_arm(double* to) const {
    const mjModel& model = physics_.model();
    double angles[kNumArmJoints], sines[kNumArmJoints], cosines[kNumArmJoints];
    for (int i = 0; i < kNumArmJoints; ++i) angles[i] = physics_.data().qpos[model.jnt_qposadr[joints_[i]]];
    numpy::sin(angles, sines, kNumArmJoints);
    numpy::cos(angles, cosines, kNumArmJoints);
    for (int i = 0; i < kNumArmJoints; ++i) {
      *to++ = sines[i];
      *to++ = cosines[i];
    }
    for (const int joint : joints_) *to++ = physics_.data().qvel[model.jnt_dofadr[joint]];
    return to;
  }
  // In the plane of x and z.
  double* write_position(int body, double* to) const {
    *to++ = physics_.xpos(body)[0];
    *to++ = physics_.xpos(body)[2];
    return to;
  }
  double* write_pose(int body, double* to) const {
    to = write_position(body, to);
    *to++ = physics_.data().xquat[4 * body];
    *to++ = physics_.data().xquat[4 * body + 2];
    return to;
  }
  double* write_joint_velocities(std::span<const int> addresses, double* to) const {
    for (const int address : addresses) *to++ = physics_.data().qvel[address];
    return to;
  }
  double site_distance(int first, int second) const {
    return distance(physics_.site_xpos(first), physics_.site_xpos(second));
  }

  std::vector<int> joints_;
  int hand_, grasp_, finger_, thumb_;
};

class Manipulator : public Arm {
 public:
  Manipulator(Physics& physics, bool uses_peg, bool inserts)
      : Arm(physics),
        uses_peg_(uses_peg),
        inserts_(inserts),
        touch_(sensors({"palm_touch", "finger_touch", "thumb_touch", "fingertip_touch", "thumbtip_touch"})),
        object_(physics.body(uses_peg ? "peg" : "ball")),
        target_(physics.body(uses_peg ? "target_peg" : "target_ball")),
        receptacle_(inserts ? physics.body(uses_peg ? "slot" : "cup") : -1),
        object_site_(physics.site(uses_peg ? "peg" : "ball")),
        target_site_(physics.site(uses_peg ? "target_peg" : "target_ball")) {
    for (const char* axis : {"_x", "_z", "_y"}) {
      const std::string joint = (uses_peg ? "peg" : "ball") + std::string(axis);
      object_positions_.push_back(physics.joint_position(joint.c_str()));
      object_velocities_.push_back(physics.joint_velocity(joint.c_str()));
    }
    if (uses_peg) {
      peg_sites_ = {physics.site("peg_grasp"), physics.site("peg_pinch"), physics.site("pinch"),
                    physics.site("target_peg_tip"), physics.site("peg_tip")};
    }
    physics.modify("body_quat", &mjModel::body_quat, 4 * physics.model().nbody);
  }

  std::vector<Observed> layout() const override {
    return {{"arm_pos", {kNumArmJoints, 2}},
            {"arm_vel", {kNumArmJoints}},
            {"touch", {5}},
            {"hand_pos", {4}},
            {"object_pos", {4}},
            {"object_vel", {3}},
            {"target_pos", {4}}};
  }

  void start(RandomState& random) override {
    do {
      draw_arm(random);
      const double x = random.uniform(-.4, .4);
      const double z = random.uniform(.1, .4);
      const double angle = inserts_ ? random.uniform(-kPi / 3, kPi / 3) : random.uniform(-kPi, kPi);
      if (inserts_) place(receptacle_, x, z, angle);
      place(target_, x, z, angle);
      draw_object(random, x, z, angle);
      physics_.after_reset();
    } while (is_colliding());
  }

  void observe(double* to) const override {
    to = write_arm(to);
    write_sensors(to, touch_);
    numpy::log1p(to, to, 5);
    to = write_pose(hand_, to + 5);
    to = write_pose(object_, to);
    to = write_joint_velocities(object_velocities_, to);
    write_pose(target_, to);
  }

  double reward() const override {
    const double bring = closeness(object_site_, target_site_);
    if (!uses_peg_) return bring;
    const auto [peg_grasp, peg_pinch, pinch, target_tip, tip] = peg_sites_;
    const double grasping = (closeness(peg_grasp, grasp_) + closeness(peg_pinch, pinch)) / 2;
    const double bringing = (bring + closeness(target_tip, tip)) / 2;
    return std::max(bringing, grasping / 3);
  }

 private:
  enum Start { kInHand, kInTarget };

  void place(int body, double x, double z, double angle) {
    mjModel& model = physics_.model();
    model.body_pos[3 * body] = x;
    model.body_pos[3 * body + 2] = z;
    model.body_quat[4 * body] = numpy::cos(angle / 2);
    model.body_quat[4 * body + 2] = numpy::sin(angle / 2);
  }
  void draw_object(RandomState& random, double x, double z, double angle) {
    constexpr double kProbabilities[] = {.1, .1, 1 - .1 - .1};
    const std::size_t start = random.choice(kProbabilities);
    if (start == kInHand) {
      physics_.after_reset();
      x = physics_.site_xpos(grasp_)[0];
      z = physics_.site_xpos(grasp_)[2];
      const double* const direction = physics_.data().site_xmat + 9 * grasp_;
      angle = kPi - numpy::arctan2(direction[kZX], direction[kXX]);
    } else if (start != kInTarget) {
      x = random.uniform(-.5, .5);
      z = random.uniform(0, .7);
      angle = random.uniform(0, 2 * kPi);
      physics_.qvel()[object_velocities_[0]] = random.uniform(-5, 5);
    }
    physics_.qpos()[object_positions_[0]] = x;
    physics_.qpos()[object_positions_[1]] = z;
    physics_.qpos()[object_positions_[2]] = angle;
  }
  double closeness(int first, int second) const { return tolerance(site_distance(first, second), {0, .01, .01 * 2}); }

  struct PegSites {
    int grasp = -1, pinch = -1, hand_pinch = -1, target_tip = -1, tip = -1;
  };

  bool uses_peg_, inserts_;
  std::vector<int> touch_, object_positions_, object_velocities_;
  int object_, target_, receptacle_, object_site_, target_site_;
  PegSites peg_sites_;
};

class Stacker : public Arm {
 public:
  Stacker(Physics& physics, int num_boxes)
      : Arm(physics),
        target_(physics.body("target")),
        target_geom_(physics.geom("target")),
        target_site_(physics.site("target")) {
    for (int i = 0; i < num_boxes; ++i) {
      const std::string name = "box" + std::to_string(i);
      boxes_.push_back(physics.body(name.c_str()));
      box_sites_.push_back(physics.site(name.c_str()));
      for (const char* axis : {"_x", "_z", "_y"}) positions_.push_back(physics.joint_position((name + axis).c_str()));
      for (const char* axis : {"_x", "_y", "_z"}) velocities_.push_back(physics.joint_velocity((name + axis).c_str()));
    }
  }

  std::vector<Observed> layout() const override {
    const auto num_boxes = static_cast<std::int64_t>(boxes_.size());
    return {{"arm_pos", {kNumArmJoints, 2}},
            {"arm_vel", {kNumArmJoints}},
            {"touch", {physics_.model().nsensordata}},
            {"hand_pos", {4}},
            {"box_pos", {num_boxes, 4}},
            {"box_vel", {3 * num_boxes}},
            {"target_pos", {2}}};
  }

  void start(RandomState& random) override {
    do {
      draw_arm(random);
      const std::int64_t level = 2 * random.randint(0, static_cast<std::int64_t>(boxes_.size())) + 1;
      double* const target = physics_.model().body_pos + 3 * target_;
      target[2] = physics_.geom_size(target_geom_) * static_cast<double>(level);
      target[0] = random.uniform(-.37, .37);
      for (std::size_t i = 0; i < positions_.size(); i += 3) {
        physics_.qpos()[positions_[i]] = random.uniform(.1, .3);
        physics_.qpos()[positions_[i + 1]] = random.uniform(0, .7);
        physics_.qpos()[positions_[i + 2]] = random.uniform(0, 2 * kPi);
      }
      physics_.after_reset();
    } while (is_colliding());
  }

  void observe(double* to) const override {
    to = write_arm(to);
    numpy::log1p(physics_.data().sensordata, to, physics_.model().nsensordata);
    to = write_pose(hand_, to + physics_.model().nsensordata);
    for (const int box : boxes_) to = write_pose(box, to);
    to = write_joint_velocities(velocities_, to);
    write_position(target_, to);
  }

  double reward() const override {
    double nearest = infinity;
    for (const int box : box_sites_) nearest = std::min(nearest, site_distance(box, target_site_));
    const double box_is_close = tolerance(nearest, {.margin = 2 * physics_.geom_size(target_geom_)});
    const double hand_is_far = tolerance(site_distance(grasp_, target_site_), {.1, infinity, .01});
    return box_is_close * hand_is_far;
  }

 private:
  std::vector<int> boxes_, box_sites_, positions_, velocities_;
  int target_, target_geom_, target_site_;
};

}  // namespace

std::unique_ptr<Task> make_arm_task(std::string_view name, Physics& physics) {
  if (name.starts_with("manipulator-")) {
    return std::make_unique<Manipulator>(physics, name.ends_with("_peg"), name.find("-insert") != name.npos);
  }
  if (name.starts_with("stacker-")) return std::make_unique<Stacker>(physics, name.ends_with("_2") ? 2 : 4);
  return nullptr;
}

}  // namespace envfleet::dm_control
