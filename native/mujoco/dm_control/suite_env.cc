// SuiteEnv: a task of dm_control's suite as an env. One class serves all of them: the task is a parameter with
// another default for each id.
#include <cstring>
#include <deque>
#include <stdexcept>
#include <string>

#include "task.h"

namespace envfleet::dm_control {

namespace {

constexpr TaskFactory kFactories[] = {make_pole_task,      make_walker_task, make_target_task, make_arm_task,
                                      make_quadruped_task, make_dog_task,    make_lqr_task};

std::unique_ptr<Task> make_task(const std::string& name, Physics& physics) {
  for (const TaskFactory make : kFactories) {
    if (auto task = make(name, physics)) return task;
  }
  throw std::invalid_argument("expected a task of dm_control's suite, got " + name);
}

std::int64_t size_of(const Observed& observed) {
  std::int64_t size = 1;
  for (const std::int64_t length : observed.shape) size *= length;
  return size;
}

std::int64_t size_of(const std::vector<Observed>& layout) {
  std::int64_t size = 0;
  for (const Observed& observed : layout) size += size_of(observed);
  return size;
}

class SuiteEnv {
 public:
  using Random = RandomState;
  static constexpr bool writes_every_element = true;

  static Params params() {
    return {
        {"task", "", "the task, such as walker-run; envfleet sets it"},
        {"frame_skip", 1, "steps of the task in a step"},
        {"flat_observation", false, "one array, named observations, instead of several"},
        {"height", 240, "of a picture, in pixels"},
        {"width", 320, "of a picture, in pixels"},
        {"camera_id", 0, "the camera that draws; -1: the free one"},
        {"camera_name", "", "the camera that draws, by its name"},
    };
  }

  static void spec(const Config& config, Spec& spec) {
    Physics physics(suite_model(config.text("task")));
    const auto layout = make_task(config.text("task"), physics)->layout();
    if (config.flag("flat_observation")) {
      spec.observation("observations", box<double>({size_of(layout)}));
    } else {
      for (const Observed& observed : layout) spec.observation(observed.name, box<double>(observed.shape));
    }
    const mjModel& model = physics.model();
    std::vector<double> low, high;
    for (int i = 0; i < model.nu; ++i) {
      const bool is_limited = model.actuator_ctrllimited[i] != 0;
      low.push_back(is_limited ? model.actuator_ctrlrange[2 * i] : -mjMAXVAL);
      high.push_back(is_limited ? model.actuator_ctrlrange[2 * i + 1] : mjMAXVAL);
    }
    spec.action(box<double>(std::move(low), std::move(high)));
    spec.info("discount", box<double>({}, 0, 1), EF_ON_STEP);
    const double limit = physics.suite_model().step_limit;
    if (std::isfinite(limit)) {
      spec.max_episode_steps(static_cast<int>(std::ceil(limit / static_cast<double>(frame_skip_of(config)))));
    }
    check_pictures(model, config);
  }

  explicit SuiteEnv(const Config& config)
      : frame_skip_(frame_skip_of(config)),
        physics_(suite_model(config.text("task"))),
        task_(make_task(config.text("task"), physics_)),
        layout_(task_->layout()),
        is_flat_(config.flag("flat_observation")),
        observation_(static_cast<std::size_t>(size_of(layout_))) {}

  void reset(RandomState& random, Out& out) {
    num_steps_ = 0;
    physics_.reset();
    task_->start(random);
    physics_.after_reset();
    update_observation();
    observe(out);
  }

  void step(const double* action, Out& out) {
    refresh_if_stale();
    for (std::int64_t i = 0; i < frame_skip_ && !out.truncated && !out.terminated; ++i) {
      std::copy_n(action, physics_.model().nu, physics_.data().ctrl);
      physics_.step(physics_.suite_model().n_sub_steps);
      out.reward += task_->reward();
      const bool is_last = static_cast<double>(++num_steps_) >= physics_.suite_model().step_limit;
      out.terminated = task_->is_terminated();
      out.truncated = is_last && !out.terminated;  // dm_control reports one end, by its discount
    }
    *out.info<double>() = out.terminated ? 0.0 : 1.0;
    update_observation();
    observe(out);
  }

  void observe(Out& out) {
    refresh_if_stale();
    const double* next = observation_.data();
    const int count = is_flat_ ? 1 : static_cast<int>(layout_.size());
    for (int k = 0; k < count; ++k) {
      std::copy_n(next, out.obs_size(k), out.obs<double>(k));
      next += out.obs_size(k);
    }
  }

  void save(StateWriter& writer) {
    refresh_if_stale();
    physics_.save(writer);
    writer("num_steps", num_steps_);
    writer("observation", observation_);
    task_->save(writer);
  }
  void load(StateReader& reader) {
    const std::size_t size = observation_.size();
    physics_.load(reader);
    reader("num_steps", num_steps_);
    reader("observation", observation_);
    if (observation_.size() != size) {
      observation_.resize(size);
      throw std::invalid_argument("the state holds an observation of another size");
    }
    task_->load(reader);
    is_stale_ = false;
  }
  template <class Visitor>
  void fields(Visitor& visit) {
    physics_.fields(visit);
  }
  // Later, at the next step: qpos and qvel may be set one after the other.
  void fields_changed() {
    if (physics_.was_written()) is_stale_ = true;
  }

 private:
  static std::int64_t frame_skip_of(const Config& config) {
    const std::int64_t frame_skip = config.integer("frame_skip");
    if (frame_skip < 1 || frame_skip > 1 << 16) {
      throw std::invalid_argument("frame_skip expected 1 to 65536, got " + std::to_string(frame_skip));
    }
    return frame_skip;
  }
  static void check_pictures(const mjModel& model, const Config& config) {
    for (const char* name : {"width", "height"}) {
      const std::int64_t size = config.integer(name);
      if (size < 1 || size > 1 << 14) {
        throw std::invalid_argument(std::string(name) + " expected 1 to 16384, got " + std::to_string(size));
      }
    }
    const std::int64_t camera = config.integer("camera_id");
    if (camera < -1 || camera >= model.ncam) {
      throw std::invalid_argument("camera_id expected -1 (the free one) to " + std::to_string(model.ncam - 1) + ", got " +
                                  std::to_string(camera));
    }
    const std::string name = config.text("camera_name");
    if (!name.empty() && mj_name2id(&model, mjOBJ_CAMERA, name.c_str()) < 0) {
      throw std::invalid_argument("camera_id expected a camera of the model, got " + name);
    }
  }

  void update_observation() {
    task_->observe(observation_.data());
    is_stale_ = false;
  }
  // After fields were written: what is derived from them.
  void refresh_if_stale() {
    if (!is_stale_) return;
    physics_.after_reset();
    update_observation();
  }

  std::int64_t frame_skip_;
  Physics physics_;
  std::unique_ptr<Task> task_;
  std::vector<Observed> layout_;
  bool is_flat_;
  bool is_stale_ = false;
  std::int64_t num_steps_ = 0;  // of the task, in this episode
  std::vector<double> observation_;
};

constexpr const char* kTasks[] = {
    "acrobot-swingup",
    "acrobot-swingup_sparse",
    "ball_in_cup-catch",
    "cartpole-balance",
    "cartpole-balance_sparse",
    "cartpole-swingup",
    "cartpole-swingup_sparse",
    "cartpole-two_poles",
    "cartpole-three_poles",
    "cheetah-run",
    "dog-stand",
    "dog-walk",
    "dog-trot",
    "dog-run",
    "dog-fetch",
    "finger-spin",
    "finger-turn_easy",
    "finger-turn_hard",
    "fish-upright",
    "fish-swim",
    "hopper-stand",
    "hopper-hop",
    "humanoid-stand",
    "humanoid-walk",
    "humanoid-run",
    "humanoid-run_pure_state",
    "humanoid_CMU-stand",
    "humanoid_CMU-walk",
    "humanoid_CMU-run",
    "lqr-lqr_2_1",
    "lqr-lqr_6_2",
    "manipulator-bring_ball",
    "manipulator-bring_peg",
    "manipulator-insert_ball",
    "manipulator-insert_peg",
    "pendulum-swingup",
    "point_mass-easy",
    "point_mass-hard",
    "quadruped-walk",
    "quadruped-run",
    "quadruped-escape",
    "quadruped-fetch",
    "reacher-easy",
    "reacher-hard",
    "stacker-stack_2",
    "stacker-stack_4",
    "swimmer-swimmer6",
    "swimmer-swimmer15",
    "walker-stand",
    "walker-walk",
    "walker-run",
};

// EnvPool's name: "ball_in_cup-catch" -> "BallInCupCatch-v1".
std::string envpool_name(std::string_view task) {
  std::string name;
  bool is_first = true;
  for (const char letter : task) {
    const bool is_separator = letter == '_' || letter == '-';
    if (!is_separator) name += is_first && letter >= 'a' && letter <= 'z' ? static_cast<char>(letter - 'a' + 'A') : letter;
    is_first = is_separator;
  }
  return name + "-v1";
}

// The env type of an id: SuiteEnv with the task as the default of its parameter.
const ef_env_type* type_of(const char* id, const char* task) {
  // Never destroyed: a thread that is stuck in an env outlives main().
  auto& params = *new std::vector<ef_param>;
  auto& type = *new ef_env_type(*envfleet::detail::make_type<SuiteEnv>(id));
  params.assign(type.params, type.params + type.num_params);
  params[0].default_value.text = task;
  type.params = params.data();
  return &type;
}

const bool are_registered = [] {
  static auto& names = *new std::deque<std::string>;
  for (const char* task : kTasks) {
    envfleet::detail::local_types().push_back(type_of(task, task));
    envfleet::detail::local_types().push_back(type_of(names.emplace_back(envpool_name(task)).c_str(), task));
  }
  return true;
}();

}  // namespace

}  // namespace envfleet::dm_control
