// InvertedDoublePendulum: Gymnasium's InvertedDoublePendulum-v5 and -v4, gym's -v2.
#include "mujoco_env.h"

namespace envfleet::mujoco {

namespace {

template <int kVersion>
class InvertedDoublePendulum : public MujocoEnv<InvertedDoublePendulum<kVersion>> {
  using Base = MujocoEnv<InvertedDoublePendulum>;
  using Base::sim_;

 public:
  static constexpr Task task{kVersion, "inverted_double_pendulum.xml", 5, 1000, 9100.0};

  static Params params() {
    if (kVersion < 5) return with_common_params(task, {});
    return with_common_params(task, {{"healthy_reward", 10.0, "for a step in which the tip is above 1"},
                                     {"reset_noise_scale", 0.1, "of the noise in initial positions and velocities"}});
  }
  static void check(const Model& model, const Config&) {
    model.expect_sizes(2, 3);
    if (model->nsite == 0) throw std::invalid_argument("xml_file " + model.path() + " expected a site at the tip, got none");
  }
  static int observation_size(const Model& model, const Config&) {
    return 1 + 2 * (model->nq - 1) + model->nv + num_forces(model);
  }
  static void infos(const Model&, const Config&, Spec& spec) {
    if (kVersion < 5) return;
    for (const char* name : {"reward_survive", "distance_penalty", "velocity_penalty"}) {
      spec.info(name, scalar<double>(), EF_ON_STEP);
    }
  }

  explicit InvertedDoublePendulum(const Config& config)
      : Base(config),
        healthy_reward_(kVersion == 5 ? config.real("healthy_reward") : 10.0),
        reset_noise_scale_(kVersion == 5 ? checked_scale(config) : 0.1) {}

  void start(Rng& rng) { this->start_normally(rng, reset_noise_scale_); }

  void write(double* to) const {
    const mjData& data = sim_.data();
    const Model& model = sim_.model();
    *to++ = data.qpos[0];
    for (int i = 1; i < model->nq; ++i) *to++ = std::sin(data.qpos[i]);
    for (int i = 1; i < model->nq; ++i) *to++ = std::cos(data.qpos[i]);
    for (int i = 0; i < model->nv; ++i) *to++ = clip(data.qvel[i], -10, 10);
    for (int i = 0; i < num_forces(model); ++i) *to++ = clip(data.qfrc_constraint[i], -10, 10);
  }

  void score(const float*, Out& out) {
    const double x = sim_.data().site_xpos[0];
    const double y = sim_.data().site_xpos[2];
    const double* velocity = sim_.data().qvel;
    const double distance_penalty = 0.01 * envfleet::numpy::squared(x) + envfleet::numpy::squared(y - 2);
    const double velocity_penalty =
        1e-3 * envfleet::numpy::squared(velocity[1]) + 5e-3 * envfleet::numpy::squared(velocity[2]);
    out.terminated = y <= 1;
    // Versions before 5 pay for the last step too.
    const double alive = healthy_reward_ * (kVersion == 5 && out.terminated ? 0 : 1);
    out.reward = alive - distance_penalty - velocity_penalty;
    if (kVersion == 5) InfoRow(out).real(alive).real(-distance_penalty).real(-velocity_penalty);
  }

 private:
  // Version 5 shows the constraint force on the cart alone: the others are zero.
  static int num_forces(const Model& model) { return kVersion == 5 ? 1 : static_cast<int>(model->nv); }

  double healthy_reward_, reset_noise_scale_;
};

}  // namespace

ENVFLEET_ENV("InvertedDoublePendulum-v5", InvertedDoublePendulum<5>)
ENVFLEET_ENV("InvertedDoublePendulum-v4", InvertedDoublePendulum<4>)
ENVFLEET_ENV("InvertedDoublePendulum-v2", InvertedDoublePendulum<2>)

}  // namespace envfleet::mujoco
