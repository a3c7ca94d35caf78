// Envs that step_lanes() steps in groups: no row, count or fault may tell them from envs that are stepped one by one.
#include <algorithm>
#include <map>
#include <numeric>

#include "tests/test_envs.h"

using namespace test;

namespace {

constexpr int kThrow = 8, kThrowInNextReset = 9;

// Adds up its actions. Env i ends after 3 + i % 11 steps or so, by itself or by its time limit, and now and then in many
// lanes at once.
struct Sum {
  static Params params() { return {{"mark", 0, "the id of the env"}}; }
  static void spec(const Config&, Spec& spec) {
    spec.observation(envfleet::box<double>({3}));
    spec.action(envfleet::discrete(10));
    spec.max_episode_steps(9);
  }
  explicit Sum(const Config& config) : mark(static_cast<int>(config.integer("mark"))) {}

  void reset(Rng& rng, Out& out) {
    if (throws_in_reset) throw std::runtime_error("reset of " + std::to_string(mark));
    sum = rng.uniform(0, 1);
    count = 0;
    write(out.obs<double>());
  }
  void step(int action, Out& out) {
    if (action == kThrow) throw std::runtime_error("step of " + std::to_string(mark));
    throws_in_reset |= action == kThrowInNextReset;
    sum += action;
    ++count;
    out.reward = sum;
    out.terminated = count >= 3 + mark % 11;
    write(out.obs<double>());
  }
  void write(double* obs) const {
    obs[0] = mark;
    obs[1] = sum;
    obs[2] = count;
  }

  int mark;
  double sum = 0;
  int count = 0;
  bool throws_in_reset = false;
};

// Refuses groups with an action above 6, and so breaks no other env if one throws: it leaves those to step(), also because
// the action of an env that is reset instead must have no effect.
struct SumInLanes : Sum {
  using Sum::Sum;
  static constexpr int lanes = 64;
  static inline std::map<int, std::int64_t> num_groups;  // by size

  template <int kLanes>
    requires(kLanes % 4 == 0)
  static bool step_lanes(SumInLanes* const* envs, const std::int32_t* actions, envfleet::LaneOut<kLanes>& out) {
    if (std::any_of(actions, actions + kLanes, [](int action) { return action > 6; })) return false;
    num_groups[kLanes] += 1;
    for (int i = 0; i < kLanes; ++i) {
      SumInLanes& env = *envs[i];
      env.sum += actions[i];
      ++env.count;
      out.reward[i] = env.sum;
      out.terminated[i] = env.count >= 3 + env.mark % 11 ? 255 : 0;  // any number is true
      env.write(out.template obs<double>() + 3 * i);
    }
    return true;
  }
};

// The same with one size of groups, which is not a power of two, and with an observe() of its own.
struct SumInThrees : Sum {
  using Sum::Sum;
  static constexpr int lanes = 3;
  static bool step_lanes(SumInThrees* const* envs, const std::int32_t* actions, envfleet::LaneOut<lanes>& out) {
    if (std::any_of(actions, actions + lanes, [](int action) { return action > 7; })) return false;
    for (int i = 0; i < lanes; ++i) {
      SumInThrees& env = *envs[i];
      env.sum += actions[i];
      ++env.count;
      out.reward[i] = env.sum;
      out.terminated[i] = env.count >= 3 + env.mark % 11;
      env.write(out.obs<double>() + 3 * i);
    }
    return true;
  }
  void observe(Out& out) { write(out.obs<double>()); }
};

template <class Env>
std::shared_ptr<Engine> make(int num_envs, ef_autoreset mode) {
  std::vector<ef_value> values(num_envs);
  std::vector<const ef_value*> configs;
  for (int id = 0; id < num_envs; ++id) {
    values[id].type = EF_INTEGER;
    values[id].integer = id;
    configs.push_back(&values[id]);
  }
  EngineOptions options = options_of(num_envs, num_envs, 1, mode);
  options.max_episode_steps = 9;
  const auto engine = Engine::make(type_of<Env>(), options, configs);
  for (int id = 0; id < num_envs; ++id) {
    const std::uint32_t words[4] = {static_cast<std::uint32_t>(id), 0, 0, 0};
    engine->seed(id, words);
  }
  return engine;
}

struct Seen {
  std::vector<double> numbers;
  std::vector<std::pair<std::int32_t, std::string>> faults;
  bool operator==(const Seen&) const = default;
};

Seen see(Engine& engine, Request request, const std::vector<std::int32_t>* ids, std::int64_t count) {
  Batch batch(engine.run(request, ids == nullptr ? nullptr : ids->data(), count));
  Seen seen;
  const ef_rows& rows = batch->rows();
  for (std::int64_t row = 0; row < count; ++row) {
    for (int k = 0; k < 3; ++k) seen.numbers.push_back(static_cast<const double*>(rows.obs[0])[3 * row + k]);
    if (request == Request::observe) continue;
    for (const double number :
         {rows.reward[row], double(rows.terminated[row]), double(rows.truncated[row]), double(rows.elapsed_step[row])}) {
      seen.numbers.push_back(number);
    }
    if (rows.final_obs == nullptr || (rows.terminated[row] | rows.truncated[row]) == 0) continue;
    for (int k = 0; k < 3; ++k) seen.numbers.push_back(static_cast<const double*>(rows.final_obs[0])[3 * row + k]);
    seen.numbers.push_back(rows.final_elapsed_step[row]);
  }
  for (const Fault& fault : engine.take_faults(nullptr, 0)) {
    seen.faults.emplace_back(fault.env_id, fault.what);
    engine.rebuild(fault.env_id, EF_UNSTARTED);
  }
  std::sort(seen.faults.begin(), seen.faults.end());
  return seen;
}

void reset_all(Engine& engine, const std::vector<std::pair<std::int32_t, std::string>>& faults) {
  std::vector<std::int32_t> ids;
  for (const auto& fault : faults) ids.push_back(fault.first);
  if (!ids.empty()) see(engine, Request::reset, &ids, static_cast<std::int64_t>(ids.size()));
}

// Steps both kinds of env with the same actions, all of them or some in this order.
template <class Env>
void compare(int num_envs, ef_autoreset mode, bool throws) {
  const auto in_lanes = make<Env>(num_envs, mode);
  const auto alone = make<Sum>(num_envs, mode);
  CHECK(see(*in_lanes, Request::reset, nullptr, num_envs) == see(*alone, Request::reset, nullptr, num_envs));
  std::minstd_rand random(num_envs + 1);
  std::vector<std::int32_t> all(num_envs);
  std::iota(all.begin(), all.end(), 0);
  for (int step = 0; step < 60; ++step) {
    std::vector<std::int32_t> ids = all;
    switch (step % 5) {
      case 1:  // consecutive, not from env 0 on
        ids.erase(ids.begin(), ids.begin() + static_cast<int>(random() % num_envs));
        break;
      case 2:
        std::shuffle(ids.begin(), ids.end(), random);
        break;
      case 3:
        std::reverse(ids.begin(), ids.end());
        break;
      case 4:  // two runs
        std::rotate(ids.begin(), ids.begin() + static_cast<int>(random() % num_envs), ids.end());
        break;
    }
    const std::vector<std::int32_t>* given = step % 5 == 0 ? nullptr : &ids;
    for (const std::int32_t id : ids) {
      // Most batches have no action that a group refuses; in some, several envs throw.
      auto action = static_cast<std::int32_t>(random() % (step % 3 == 0 ? 8 : 7));
      if (throws && step % 7 == 6 && random() % 16 == 0) action = random() % 2 == 0 ? kThrow : kThrowInNextReset;
      std::memcpy(in_lanes->action_slot(id), &action, sizeof action);
      std::memcpy(alone->action_slot(id), &action, sizeof action);
    }
    const auto count = static_cast<std::int64_t>(ids.size());
    const Seen seen = see(*in_lanes, Request::step, given, count);
    CHECK(seen == see(*alone, Request::step, given, count));
    reset_all(*in_lanes, seen.faults);
    reset_all(*alone, seen.faults);
    CHECK(see(*in_lanes, Request::observe, nullptr, num_envs) == see(*alone, Request::observe, nullptr, num_envs));
  }
  const auto own = in_lanes->statistics(), others = alone->statistics();
  for (int id = 0; id < num_envs; ++id) {
    CHECK_EQUAL(own[id].num_steps, others[id].num_steps);
    CHECK_EQUAL(own[id].num_resets, others[id].num_resets);
    CHECK_EQUAL(own[id].num_episodes, others[id].num_episodes);
    CHECK_EQUAL(own[id].return_sum, others[id].return_sum);
    CHECK_EQUAL(own[id].length_max, others[id].length_max);
  }
  CHECK(in_lanes->close(-1) && alone->close(-1));
}

constexpr ef_autoreset kModes[] = {EF_NEXT_STEP, EF_SAME_STEP};

}  // namespace

TEST(groups_equal_single_envs) {
  for (const ef_autoreset mode : kModes) {
    for (const int num_envs : {1, 3, 4, 7, 63, 64, 65, 100, 127, 200}) {
      compare<SumInLanes>(num_envs, mode, false);
      compare<SumInThrees>(num_envs, mode, false);
    }
  }
}

TEST(envs_that_throw_in_a_group) {
  for (const ef_autoreset mode : kModes) {
    for (const int num_envs : {5, 64, 150}) {
      compare<SumInLanes>(num_envs, mode, true);
      compare<SumInThrees>(num_envs, mode, true);
    }
  }
}

TEST(rows_left_over_are_stepped_in_smaller_groups) {
  SumInLanes::num_groups.clear();
  const auto engine = make<SumInLanes>(64 + 32 + 8 + 3, EF_NEXT_STEP);
  see(*engine, Request::reset, nullptr, 107);
  see(*engine, Request::step, nullptr, 107);
  CHECK(SumInLanes::num_groups == (std::map<int, std::int64_t>{{64, 1}, {32, 1}, {8, 1}}));
  CHECK(engine->close(-1));
}

TEST(a_refused_group_is_stepped_in_smaller_groups) {
  SumInLanes::num_groups.clear();
  const auto engine = make<SumInLanes>(64, EF_NEXT_STEP);
  see(*engine, Request::reset, nullptr, 64);
  const std::int32_t action = 7;
  std::memcpy(engine->action_slot(5), &action, sizeof action);
  see(*engine, Request::step, nullptr, 64);
  CHECK(SumInLanes::num_groups == (std::map<int, std::int64_t>{{32, 1}, {16, 1}, {8, 1}, {4, 1}}));
  CHECK(engine->close(-1));
}
