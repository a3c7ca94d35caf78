// Reacher: Gymnasium's Reacher-v5 and -v4, gym's -v2.
#include "mujoco_env.h"

namespace envfleet::mujoco {

namespace {

template <int kVersion>
class Reacher : public MujocoEnv<Reacher<kVersion>> {
  using Base = MujocoEnv<Reacher>;
  using Base::marks_;
  using Base::sim_;

 public:
  static constexpr Task task{kVersion, "reacher.xml", 2, 50, -3.75};

  static Params params() {
    if (kVersion < 5) return with_common_params(task, {});
    return with_common_params(task, {{"reward_dist_weight", 1.0, "of the distance to the target in the reward"},
                                     {"reward_control_weight", 1.0, "of the squared action in the reward"}});
  }
  static void check(const Model& model, const Config&) {
    model.expect_sizes(2, 2);
    model.body("fingertip");
    model.body("target");
  }
  // Versions before 5 show all three axes of the distance.
  static int observation_size(const Model& model, const Config&) { return model->nq + 4 + (kVersion == 5 ? 2 : 3); }
  static void infos(const Model&, const Config&, Spec& spec) {
    spec.info("reward_dist", scalar<double>(), EF_ON_STEP);
    spec.info("reward_ctrl", scalar<float>(), EF_ON_STEP);
  }

  explicit Reacher(const Config& config)
      : Base(config),
        dist_weight_(kVersion == 5 ? config.real("reward_dist_weight") : 1.0),
        control_weight_(kVersion == 5 ? config.real("reward_control_weight") : 1.0),
        fingertip_(sim_.model().body("fingertip")),
        target_(sim_.model().body("target")) {}

  void start(Rng& rng) {
    this->add_uniform(rng, 0.1, sim_.init_qpos(), sim_.qpos());
    double goal[2];
    do {
      for (double& axis : goal) axis = rng.uniform(-0.2, 0.2);
    } while (!(norm(goal, 2) < 0.2));
    std::copy_n(goal, 2, sim_.qpos().end() - 2);
    this->add_uniform(rng, 0.005, sim_.init_qvel(), sim_.qvel());
    std::fill_n(sim_.qvel().end() - 2, 2, 0.0);
  }

  void remember() {
    for (int axis = 0; axis < 3; ++axis) marks_[axis] = distance(axis);
  }

  void write(double* to) const {
    const mjData& data = sim_.data();
    for (int i = 0; i < 2; ++i) *to++ = std::cos(data.qpos[i]);
    for (int i = 0; i < 2; ++i) *to++ = std::sin(data.qpos[i]);
    to = std::copy(data.qpos + 2, data.qpos + sim_.model()->nq, to);
    to = std::copy_n(data.qvel, 2, to);
    for (int axis = 0; axis < (kVersion == 5 ? 2 : 3); ++axis) *to++ = distance(axis);
  }

  void score(const float* action, Out& out) {
    // Versions before 5 reward the distance before the step.
    if (kVersion == 5) remember();
    const double dist = -norm(marks_.data(), 3) * dist_weight_;
    const float ctrl = -sum_of_squares(action, sim_.model()->nu) * static_cast<float>(control_weight_);
    out.reward = dist + ctrl;
    InfoRow(out).real(dist).real32(ctrl);
  }

 private:
  double distance(int axis) const { return this->body_position(fingertip_)[axis] - this->body_position(target_)[axis]; }

  double dist_weight_, control_weight_;
  int fingertip_, target_;
};

}  // namespace

ENVFLEET_ENV("Reacher-v5", Reacher<5>)
ENVFLEET_ENV("Reacher-v4", Reacher<4>)
ENVFLEET_ENV("Reacher-v2", Reacher<2>)

}  // namespace envfleet::mujoco
