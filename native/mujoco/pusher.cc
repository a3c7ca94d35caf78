// Pusher: Gymnasium's Pusher-v5 and -v4, gym's -v2.
//
// Gymnasium's own Pusher-v4 refuses MuJoCo 3 and later, with which the very light object of its model moves
// differently than with MuJoCo 2. Here it runs all the same, as in EnvPool.
#include "mujoco_env.h"

namespace envfleet::mujoco {

namespace {

template <int kVersion>
class Pusher : public MujocoEnv<Pusher<kVersion>> {
  using Base = MujocoEnv<Pusher>;
  using Base::marks_;
  using Base::sim_;

 public:
  static constexpr Task task{kVersion, kVersion == 5 ? "pusher_v5.xml" : "pusher.xml", 5, 100, 0.0};

  static Params params() {
    if (kVersion < 5) return with_common_params(task, {});
    return with_common_params(task, {{"reward_near_weight", 0.5, "of the arm's distance to the object in the reward"},
                                     {"reward_dist_weight", 1.0, "of the object's distance to the goal in the reward"},
                                     {"reward_control_weight", 0.1, "of the squared action in the reward"}});
  }
  static void check(const Model& model, const Config&) {
    model.expect_sizes(kArm, kArm);
    for (const char* name : {"tips_arm", "object", "goal"}) model.body(name);
  }
  static int observation_size(const Model&, const Config&) { return 2 * kArm + 3 * 3; }
  static void infos(const Model&, const Config&, Spec& spec) {
    spec.info("reward_dist", scalar<double>(), EF_ON_STEP);
    spec.info("reward_ctrl", scalar<float>(), EF_ON_STEP);
    if (kVersion == 5) spec.info("reward_near", scalar<double>(), EF_ON_STEP);
  }

  explicit Pusher(const Config& config)
      : Base(config),
        near_weight_(kVersion == 5 ? config.real("reward_near_weight") : 0.5),
        dist_weight_(kVersion == 5 ? config.real("reward_dist_weight") : 1.0),
        control_weight_(kVersion == 5 ? config.real("reward_control_weight") : 0.1),
        arm_(sim_.model().body("tips_arm")),
        object_(sim_.model().body("object")),
        goal_(sim_.model().body("goal")) {}

  void start(Rng& rng) {
    std::copy(sim_.init_qpos().begin(), sim_.init_qpos().end(), sim_.qpos().begin());
    // The object's place, then the goal's.
    double cylinder[2];
    do {
      cylinder[0] = rng.uniform(-0.3, 0.0);
      cylinder[1] = rng.uniform(-0.2, 0.2);
    } while (!(norm(cylinder, 2) > 0.17));
    std::copy_n(cylinder, 2, sim_.qpos().end() - 4);
    std::fill_n(sim_.qpos().end() - 2, 2, 0.0);
    this->add_uniform(rng, 0.005, sim_.init_qvel(), sim_.qvel());
    std::fill_n(sim_.qvel().end() - 4, 4, 0.0);
  }

  void remember() {
    marks_[0] = distance(arm_);
    marks_[1] = distance(goal_);
  }

  void write(double* to) const {
    to = std::copy_n(sim_.data().qpos, kArm, to);
    to = std::copy_n(sim_.data().qvel, kArm, to);
    for (const int body : {arm_, object_, goal_}) to = std::copy_n(this->body_position(body), 3, to);
  }

  void score(const float* action, Out& out) {
    // Versions before 5 reward the distances before the step.
    if (kVersion == 5) remember();
    const double near = -marks_[0] * near_weight_;
    const double dist = -marks_[1] * dist_weight_;
    const float effort = -sum_of_squares(action, sim_.model()->nu);
    const float ctrl = effort * static_cast<float>(control_weight_);
    out.reward = dist + ctrl + near;
    InfoRow row(out);
    // Versions before 5 report the effort without its weight.
    row.real(dist).real32(kVersion == 5 ? ctrl : effort);
    if (kVersion == 5) row.real(near);
  }

 private:
  static constexpr int kArm = 7;  // joints of the arm

  // From the object.
  double distance(int body) const {
    double difference[3];
    for (int axis = 0; axis < 3; ++axis) {
      difference[axis] = this->body_position(object_)[axis] - this->body_position(body)[axis];
    }
    return norm(difference, 3);
  }

  double near_weight_, dist_weight_, control_weight_;
  int arm_, object_, goal_;
};

}  // namespace

ENVFLEET_ENV("Pusher-v5", Pusher<5>)
ENVFLEET_ENV("Pusher-v4", Pusher<4>)
ENVFLEET_ENV("Pusher-v2", Pusher<2>)

}  // namespace envfleet::mujoco
