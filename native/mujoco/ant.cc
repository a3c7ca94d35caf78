// Ant: Gymnasium's Ant-v5 and -v4, gym's -v3 and -v2.
#include <algorithm>
#include <cctype>

#include "locomotion.h"

namespace envfleet::mujoco {

namespace {

constexpr double kAntHealthyZ[2] = {0.2, 1.0};
constexpr double kAntForces[2] = {-1.0, 1.0};

template <int kVersion>
class Ant : public MujocoEnv<Ant<kVersion>> {
  using Base = MujocoEnv<Ant>;
  using Base::marks_;
  using Base::sim_;

 public:
  static constexpr Task task{kVersion, "ant.xml", 5, 1000, 6000.0};

  static Params params() {
    Params own = {
        {"ctrl_cost_weight", 0.5, "of the squared action in the reward"},
        {"contact_cost_weight", 5e-4, "of the squared contact forces in the reward"},
        {"healthy_reward", 1.0, "for a step in which the ant is healthy"},
        {"terminate_when_unhealthy", true, "end the episode when the ant is not healthy"},
        {"healthy_z_range", kAntHealthyZ, "the torso heights at which the ant is healthy"},
        {"contact_force_range", kAntForces, "what contact forces are clipped to"},
        {"reset_noise_scale", 0.1, "of the noise in initial positions and velocities"},
        {"exclude_current_positions_from_observation", true, "leave out the x and y positions"},
    };
    if (kVersion < 4) return with_common_params(task, own);
    if (kVersion == 4) {
      own.insert(own.begin(), {"xml_file", task.xml_file, "the model: a path, or the name of one of Gymnasium's files"});
      own.push_back({"use_contact_forces", false, "contact forces in the observation and the reward"});
      return with_common_params(task, own);
    }
    own.push_back({"forward_reward_weight", 1.0, "of the forward velocity in the reward"});
    own.push_back({"main_body", "1", "the body whose movement is rewarded: its name or number"});
    own.push_back({"include_cfrc_ext_in_observation", true, "the contact forces"});
    return with_common_params(task, own);
  }

  // Its version 4 takes one too.
  static std::string xml_file(const Config& config) { return config.text("xml_file"); }
  static void check(const Model& model, const Config& config) {
    model.expect_sizes(3, 1);
    main_body(model, config);
  }
  static int observation_size(const Model& model, const Config& config) {
    const int state = Base::state_size(model, skipped_positions(config, 2));
    if (kVersion == 5) return state + (shows_forces(config) ? 6 * (model->nbody - 1) : 0);
    return state + (shows_forces(config) ? 6 * model->nbody : 0);
  }
  static void infos(const Model&, const Config& config, Spec& spec) {
    if (kVersion == 5) {
      Travel::infos(spec, true);
      spec.info("reward_ctrl", scalar<float>(), EF_ON_STEP);
      for (const char* name : {"reward_contact", "reward_survive"}) spec.info(name, scalar<double>(), EF_ON_STEP);
      return;
    }
    spec.info("reward_forward", scalar<double>(), EF_ON_STEP);
    // Gymnasium's v4 reports the contact cost under this name when it counts it.
    const bool holds_contact_cost = kVersion == 4 && shows_forces(config);
    spec.info("reward_ctrl", holds_contact_cost ? scalar<double>() : scalar<float>(), EF_ON_STEP);
    if (kVersion < 4) spec.info("reward_contact", scalar<double>(), EF_ON_STEP);
    spec.info("reward_survive", scalar<double>(), EF_ON_STEP);
    if (kVersion > 2) Travel::infos(spec, false);
  }

  explicit Ant(const Config& config)
      : Base(config, kVersion == 5 || shows_forces(config)),
        forward_reward_weight_(kVersion == 5 ? config.real("forward_reward_weight") : 1.0),
        ctrl_cost_weight_(config.real("ctrl_cost_weight")),
        contact_cost_weight_(config.real("contact_cost_weight")),
        reset_noise_scale_(checked_scale(config)),
        health_(config),
        healthy_z_(config, "healthy_z_range"),
        contact_force_(config, "contact_force_range"),
        main_body_(main_body(sim_.model(), config)),
        skipped_(skipped_positions(config, 2)),
        shows_forces_(shows_forces(config)) {}

  void start(Rng& rng) { this->start_normally(rng, reset_noise_scale_); }
  void remember() { std::copy_n(this->body_position(main_body_), 2, marks_.begin()); }

  void write(double* observation) const {
    double* to = this->write_state(observation, skipped_);
    if (!shows_forces_) return;
    const std::span<const double> forces = sim_.contact_forces();
    // Version 5 leaves out the world's.
    for (std::size_t i = kVersion == 5 ? 6 : 0; i < forces.size(); ++i) *to++ = clipped(forces[i]);
  }

  void tell_start(Out& out) {
    InfoRow row(out);
    if (kVersion == 5) tell_place(row, sim_.data().qpos);
  }

  void score(const float* action, Out& out) {
    const double* after = this->body_position(main_body_);
    const Travel travel(after, marks_, sim_.dt(), forward_reward_weight_);
    const bool healthy = is_healthy();
    const double survive = health_.survive(healthy);
    const double rewards = travel.forward + survive;
    const float ctrl_cost = control_cost(ctrl_cost_weight_, action, sim_);
    out.terminated = health_.ends(healthy);
    InfoRow row(out);
    if constexpr (kVersion == 5) {
      const double contact_cost = this->contact_cost();
      out.reward = rewards - (ctrl_cost + contact_cost);
      travel.tell(row, sim_.data().qpos).real32(-ctrl_cost).real(-contact_cost).real(survive);
    } else if constexpr (kVersion < 4) {
      const double contact_cost = this->contact_cost();
      // The order of version 2 is another one, and so may be the last bit.
      out.reward =
          kVersion == 2 ? travel.forward - ctrl_cost - contact_cost + survive : rewards - (ctrl_cost + contact_cost);
      row.real(travel.forward).real32(-ctrl_cost).real(-contact_cost).real(survive);
      if (kVersion > 2) travel.tell(row, after);
    } else {
      row.real(travel.forward);
      if (shows_forces_) {
        const double contact_cost = this->contact_cost();
        out.reward = rewards - (ctrl_cost + contact_cost);
        row.real(-contact_cost);
      } else {
        out.reward = rewards - ctrl_cost;
        row.real32(-ctrl_cost);
      }
      travel.tell(row.real(survive), after);
    }
  }

 private:
  // Contact forces in the observation; versions 2 and 3 always have them.
  static bool shows_forces(const Config& config) {
    return kVersion < 4 || config.flag(kVersion == 5 ? "include_cfrc_ext_in_observation" : "use_contact_forces");
  }

  // A name, or else a number. Versions before 5 know one body only.
  static int main_body(const Model& model, const Config& config) {
    if (kVersion < 5) return model.body("torso");
    const std::string given = config.text("main_body");
    const bool is_number = !given.empty() && given.size() < 9 &&
                           std::all_of(given.begin(), given.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    const int named = mj_name2id(model.raw(), mjOBJ_BODY, given.c_str());
    if (named >= 0 || !is_number) return model.body(given.c_str());
    if (std::stoi(given) >= model->nbody) {
      throw std::invalid_argument("main_body expected a number below " + std::to_string(model->nbody) + ", got " + given);
    }
    return std::stoi(given);
  }

  bool is_healthy() {
    const double z = sim_.qpos()[2];
    return all_finite(sim_.data().qpos, sim_.model()->nq) && all_finite(sim_.data().qvel, sim_.model()->nv) &&
           healthy_z_.low <= z && z <= healthy_z_.high;
  }

  double clipped(double force) const { return clip(force, contact_force_.low, contact_force_.high); }
  double contact_cost() const {
    const std::span<const double> forces = sim_.contact_forces();
    const auto square = [&](std::ptrdiff_t i) { return clipped(forces[i]) * clipped(forces[i]); };
    return contact_cost_weight_ * pairwise_sum<double>(square, 0, static_cast<std::ptrdiff_t>(forces.size()));
  }

  double forward_reward_weight_, ctrl_cost_weight_, contact_cost_weight_, reset_noise_scale_;
  HealthTerms<kVersion> health_;
  Range healthy_z_, contact_force_;
  int main_body_;
  int skipped_;
  bool shows_forces_;
};

}  // namespace

ENVFLEET_ENV("Ant-v5", Ant<5>)
ENVFLEET_ENV("Ant-v4", Ant<4>)
ENVFLEET_ENV("Ant-v3", Ant<3>)
ENVFLEET_ENV("Ant-v2", Ant<2>)

}  // namespace envfleet::mujoco
