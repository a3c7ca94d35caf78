// MujocoEnv<Self>: the common base of Gymnasium's MuJoCo envs. An env derives from it and has:
//
//   static Params params();
//   static int observation_size(const Model&, const Config&);
//   static void infos(const Model&, const Config&, Spec&);
//   static constexpr Task task;
//   explicit Self(const Config&);
//   void start(Rng&);                              // writes qpos and qvel of an episode's start
//   void write(double* observation) const;
//   void score(const float* action, Out&);         // after the substeps: reward, end, infos
//
// and, if it needs them: tell_start(Out&), the infos of a reset; remember(), which stores in marks_ what the next step
// compares with.
#pragma once

#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "envfleet/env.h"
#include "numpy_sums.h"
#include "simulation.h"

namespace envfleet::mujoco {

// How Gymnasium registers an env.
struct Task {
  int version;
  // Defaults that the user can change in all versions but 4.
  const char* xml_file;
  int frame_skip;
  int max_episode_steps;
  double reward_threshold;  // NaN: none
};

// Versions 2 and 3 ran on mujoco-py, which did not compute contact forces with MuJoCo 2: they were zero.
constexpr bool is_of_mujoco_py(int version) { return version <= 3; }

inline constexpr double kNoThreshold = std::numeric_limits<double>::quiet_NaN();

// An env's own parameters, and what all envs of its version take: the model, what the renderer in Python needs,
// EnvPool's post_constraint, xml_stamp.
Params with_common_params(const Task& task, const Params& own);

// A pair of numbers, low and high.
struct Range {
  explicit Range(const double (&pair)[2]) : low(pair[0]), high(pair[1]) {}
  Range(const Config& config, const char* name);
  bool encloses(double value) const { return low < value && value < high; }

  double low, high;
};

double checked_scale(const Config& config, const char* name = "reset_noise_scale");
// Throws for a camera or a size that the renderer cannot handle: MuJoCo ends the process for a camera that does not exist.
void check_pictures(const Model& model, const Config& config);
Space action_space(const Model& model);

// Info columns in the order of spec().
class InfoRow {
 public:
  explicit InfoRow(Out& out) : out_(out) {}
  InfoRow& real(double value) { return put(value); }
  // A value that Gymnasium computes from the action alone, in the action's float32.
  InfoRow& real32(float value) { return put(value); }
  InfoRow& integer(std::int64_t value) { return put(value); }
  InfoRow& reals(const double* values, int count) {
    if (count > 0) std::copy_n(values, count, out_.info<double>(next_++));
    return *this;
  }

 private:
  template <class T>
  InfoRow& put(T value) {
    *out_.info<T>(next_++) = value;
    return *this;
  }
  Out& out_;
  int next_ = 0;
};

template <class Self>
class MujocoEnv {
 public:
  static constexpr bool writes_every_element = true;

  static void spec(const Config& config, Spec& spec) {
    const SharedModel model = model_of(config);
    Self::check(*model, config);
    check_pictures(*model, config);
    spec.observation(box<double>({Self::observation_size(*model, config)}));
    spec.action(action_space(*model));
    Self::infos(*model, config, spec);
    spec.max_episode_steps(Self::task.max_episode_steps);
    if (!std::isnan(Self::task.reward_threshold)) spec.reward_threshold(Self::task.reward_threshold);
  }

  void reset(Rng& rng, Out& out) {
    sim_.reset();
    self().start(rng);
    sim_.forward();
    update_observation();
    observe(out);
    self().tell_start(out);
  }

  void step(const float* action, Out& out) {
    refresh_if_stale();
    sim_.advance(action, has_contact_forces_);
    self().score(action, out);
    update_observation();
    observe(out);
  }

  void observe(Out& out) {
    refresh_if_stale();
    if (out.obs_size() != static_cast<std::int64_t>(observation_.size())) [[unlikely]] {
      throw std::runtime_error(sim_.model().path() + " was changed since the pool was made; make a new one");
    }
    std::copy(observation_.begin(), observation_.end(), out.obs<double>());
  }

  void save(StateWriter& writer) {
    refresh_if_stale();
    sim_.save(writer);
    writer("marks", marks_);
    writer("observation", observation_);
  }

  void load(StateReader& reader) {
    const std::size_t size = observation_.size();
    sim_.load(reader);
    reader("marks", marks_);
    reader("observation", observation_);
    if (observation_.size() != size) {
      observation_.resize(size);
      throw std::invalid_argument("the state holds an observation of another size");
    }
    is_stale_ = false;
  }

  template <class Visitor>
  void fields(Visitor& visit) {
    sim_.fields(visit);
  }
  // Later, at the next step: qpos and qvel may be set one after the other.
  void fields_changed() {
    if (sim_.was_written()) is_stale_ = true;
  }

  void tell_start(Out&) {}
  void remember() {}
  static void check(const Model& model, const Config&) { model.expect_sizes(1, 1); }
  static std::string xml_file(const Config& config) {
    return Self::task.version != 4 ? config.text("xml_file") : Self::task.xml_file;
  }

 protected:
  explicit MujocoEnv(const Config& config, bool reads_contact_forces = false)
      : sim_(model_of(config), Self::task.version != 4 ? config.integer("frame_skip") : Self::task.frame_skip),
        has_contact_forces_(reads_contact_forces && config.flag("post_constraint")),
        observation_(static_cast<std::size_t>(Self::observation_size(sim_.model(), config))) {}

  static SharedModel model_of(const Config& config) {
    return shared_model(Self::xml_file(config), config.text("xml_stamp"));
  }

  // init_qpos + uniform noise, init_qvel + uniform or normal noise: how most episodes start.
  void start_uniformly(Rng& rng, double scale) {
    add_uniform(rng, scale, sim_.init_qpos(), sim_.qpos());
    add_uniform(rng, scale, sim_.init_qvel(), sim_.qvel());
  }
  void start_normally(Rng& rng, double scale) {
    add_uniform(rng, scale, sim_.init_qpos(), sim_.qpos());
    for (std::size_t i = 0; i < sim_.init_qvel().size(); ++i) sim_.qvel()[i] = sim_.init_qvel()[i] + scale * rng.normal();
  }
  static void add_uniform(Rng& rng, double scale, const std::vector<double>& base, std::span<double> out) {
    for (std::size_t i = 0; i < base.size(); ++i) out[i] = base[i] + rng.uniform(-scale, scale);
  }

  // qpos without its first `skipped` values, then qvel.
  static int state_size(const Model& model, int skipped) { return model->nq - skipped + model->nv; }
  double* write_state(double* to, int skipped) const {
    to = std::copy_n(sim_.data().qpos + skipped, sim_.model()->nq - skipped, to);
    return std::copy_n(sim_.data().qvel, sim_.model()->nv, to);
  }
  // The same with velocities clipped to +-10.
  double* write_clipped_state(double* to, int skipped) const {
    to = std::copy_n(sim_.data().qpos + skipped, sim_.model()->nq - skipped, to);
    for (int i = 0; i < sim_.model()->nv; ++i) *to++ = clip(sim_.data().qvel[i], -10, 10);
    return to;
  }

  // Shared by Hopper and Walker2d.
  static void walker_infos(Spec& spec, int version) {
    if (version == 2) return;
    if (version < 5) {
      for (const char* name : {"x_position", "x_velocity"}) spec.info(name, scalar<double>(), EF_ON_STEP);
      return;
    }
    for (const char* name : {"x_position", "z_distance_from_origin"}) spec.info(name, scalar<double>());
    for (const char* name : {"x_velocity", "reward_forward"}) spec.info(name, scalar<double>(), EF_ON_STEP);
    spec.info("reward_ctrl", scalar<float>(), EF_ON_STEP);
    spec.info("reward_survive", scalar<double>(), EF_ON_STEP);
  }
  template <int kVersion>
  void score_walker(const float* action, Out& out, bool is_healthy, double forward_reward_weight, double ctrl_cost_weight,
                    double healthy_reward, bool terminate_when_unhealthy) {
    const double x = sim_.data().qpos[0];
    const double velocity = (x - marks_[0]) / sim_.dt();
    const double forward = forward_reward_weight * velocity;
    // Versions before 5 also reward an unhealthy step if it is the last one.
    const bool counts = is_healthy || (kVersion < 5 && terminate_when_unhealthy);
    const double survive = counts ? healthy_reward : 0.0 * healthy_reward;
    const float ctrl_cost = static_cast<float>(ctrl_cost_weight) * sum_of_squares(action, sim_.model()->nu);
    out.reward = forward + survive - ctrl_cost;
    out.terminated = !is_healthy && terminate_when_unhealthy;
    if (kVersion == 2) return;
    InfoRow row(out);
    row.real(x);
    if (kVersion == 5) row.real(sim_.data().qpos[1] - sim_.init_qpos()[1]);
    row.real(velocity);
    if (kVersion == 5) row.real(forward).real32(-ctrl_cost).real(survive);
  }

  // A body's position in the world.
  const double* body_position(int body) const { return sim_.data().xpos + 3 * body; }

  Simulation sim_;
  bool has_contact_forces_;
  std::array<double, 3> marks_{};  // what the next step compares with

 private:
  Self& self() { return static_cast<Self&>(*this); }

  void update_observation() {
    self().remember();
    self().write(observation_.data());
    is_stale_ = false;
  }
  // After fields were written: recomputes what depends on them, as Gymnasium's set_state() does.
  void refresh_if_stale() {
    if (!is_stale_) return;
    sim_.forward();
    update_observation();
  }

  bool is_stale_ = false;
  std::vector<double> observation_;
};

}  // namespace envfleet::mujoco
