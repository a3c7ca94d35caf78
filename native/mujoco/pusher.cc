// Pusher: Gymnasium's Pusher-v5. (Its Pusher-v4 refuses MuJoCo 3 and later.)
#include "mujoco_env.h"

namespace envfleet::mujoco {

namespace {

class Pusher : public MujocoEnv<Pusher> {
 public:
  static constexpr Task task{5, "pusher_v5.xml", 5, 100, 0.0};

  static Params params() {
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
    spec.info("reward_near", scalar<double>(), EF_ON_STEP);
  }

  explicit Pusher(const Config& config)
      : MujocoEnv(config),
        near_weight_(config.real("reward_near_weight")),
        dist_weight_(config.real("reward_dist_weight")),
        control_weight_(config.real("reward_control_weight")),
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
    add_uniform(rng, 0.005, sim_.init_qvel(), sim_.qvel());
    std::fill_n(sim_.qvel().end() - 4, 4, 0.0);
  }

  void write(double* to) const {
    to = std::copy_n(sim_.data().qpos, kArm, to);
    to = std::copy_n(sim_.data().qvel, kArm, to);
    for (const int body : {arm_, object_, goal_}) to = std::copy_n(body_position(body), 3, to);
  }

  void score(const float* action, Out& out) {
    const double near = -distance(arm_) * near_weight_;
    const double dist = -distance(goal_) * dist_weight_;
    const float ctrl = -sum_of_squares(action, sim_.model()->nu) * static_cast<float>(control_weight_);
    out.reward = dist + ctrl + near;
    InfoRow(out).real(dist).real32(ctrl).real(near);
  }

 private:
  static constexpr int kArm = 7;  // joints of the arm

  // From the object.
  double distance(int body) const {
    double difference[3];
    for (int axis = 0; axis < 3; ++axis) difference[axis] = body_position(object_)[axis] - body_position(body)[axis];
    return norm(difference, 3);
  }

  double near_weight_, dist_weight_, control_weight_;
  int arm_, object_, goal_;
};

}  // namespace

ENVFLEET_ENV("Pusher-v5", Pusher)

}  // namespace envfleet::mujoco
