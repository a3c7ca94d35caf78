// InvertedPendulum: Gymnasium's InvertedPendulum-v5 and -v4, gym's -v2.
#include "mujoco_env.h"

namespace envfleet::mujoco {

namespace {

template <int kVersion>
class InvertedPendulum : public MujocoEnv<InvertedPendulum<kVersion>> {
  using Base = MujocoEnv<InvertedPendulum>;
  using Base::sim_;

 public:
  static constexpr Task task{kVersion, "inverted_pendulum.xml", 2, 1000, 950.0};

  static Params params() {
    if (kVersion < 5) return with_common_params(task, {});
    return with_common_params(task, {{"reset_noise_scale", 0.01, "of the noise in initial positions and velocities"}});
  }
  static void check(const Model& model, const Config&) { model.expect_sizes(2, 1); }
  static int observation_size(const Model& model, const Config&) { return Base::state_size(model, 0); }
  static void infos(const Model&, const Config&, Spec& spec) {
    if (kVersion == 5) spec.info("reward_survive", scalar<std::int64_t>(), EF_ON_STEP);
  }

  explicit InvertedPendulum(const Config& config)
      : Base(config), reset_noise_scale_(kVersion == 5 ? checked_scale(config) : 0.01) {}

  void start(Rng& rng) { this->start_uniformly(rng, reset_noise_scale_); }
  void write(double* observation) const { this->write_state(observation, 0); }

  void score(const float*, Out& out) {
    const mjData& data = sim_.data();
    const bool is_finite = all_finite(data.qpos, sim_.model()->nq) && all_finite(data.qvel, sim_.model()->nv);
    out.terminated = !is_finite || std::abs(data.qpos[1]) > 0.2;
    // Versions before 5 pay for the last step too.
    out.reward = kVersion < 5 || !out.terminated ? 1.0 : 0.0;
    if (kVersion == 5) InfoRow(out).integer(out.terminated ? 0 : 1);
  }

 private:
  double reset_noise_scale_;
};

}  // namespace

ENVFLEET_ENV("InvertedPendulum-v5", InvertedPendulum<5>)
ENVFLEET_ENV("InvertedPendulum-v4", InvertedPendulum<4>)
ENVFLEET_ENV("InvertedPendulum-v2", InvertedPendulum<2>)

}  // namespace envfleet::mujoco
