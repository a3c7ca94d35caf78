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

// The same with its numbers in columns, for envs of three kinds.
struct SumInColumns {
  static constexpr int lanes = 64;
  static inline std::map<int, std::int64_t> num_groups;  // by size
  static inline bool throws_in_lanes = false;
  enum { kMark, kSum, kCount };

  static Params params() { return Sum::params(); }
  static void spec(const Config& config, Spec& spec) { Sum::spec(config, spec); }
  explicit SumInColumns(const Config& config) : numbers{static_cast<double>(config.integer("mark")), 0, 0} {}

  void reset(Rng& rng, Out& out) {
    if (throws_in_reset) throw std::runtime_error("reset of " + std::to_string(mark()));
    numbers[kSum] = rng.uniform(0, 1);
    numbers[kCount] = 0;
    write(out.obs<double>());
  }
  void step(int action, Out& out) {
    if (action == kThrow) throw std::runtime_error("step of " + std::to_string(mark()));
    throws_in_reset |= action == kThrowInNextReset;
    numbers[kSum] += action;
    ++numbers[kCount];
    out.reward = numbers[kSum];
    out.terminated = numbers[kCount] >= 3 + mark() % 11;
    write(out.obs<double>());
  }
  void write(double* obs) const { std::copy_n(numbers, 3, obs); }
  int mark() const { return static_cast<int>(numbers[kMark]); }

  double (&lane_state() noexcept)[3] { return numbers; }
  std::uint32_t lane_kind() const noexcept { return 1 + kind; }

  template <int kLanes>
    requires(kLanes % 4 == 0)
  static bool step_lanes(const envfleet::LaneState<double, 3>& state, const std::int32_t* actions,
                         envfleet::LaneOut<kLanes>& out) {
    if (state.kind == 3 || std::any_of(actions, actions + kLanes, [](int action) { return action > 6; })) return false;
    num_groups[kLanes] += 1;
    for (int i = 0; i < kLanes; ++i) {
      state[kSum][i] += actions[i];
      state[kCount][i] += 1;
      if (throws_in_lanes && i == 1) throw std::runtime_error("some lane");
      out.reward[i] = state[kSum][i];
      out.terminated[i] = state[kCount][i] >= 3 + static_cast<int>(state[kMark][i]) % 11;
      for (int k = 0; k < 3; ++k) out.template obs<double>()[3 * i + k] = state[k][i];
    }
    return true;
  }

  template <class Visitor>
  void fields(Visitor& visit) {
    visit("numbers", numbers);
    visit("throws_in_reset", throws_in_reset);
    visit("kind", kind);
  }

  double numbers[3];
  bool throws_in_reset = false;
  std::uint32_t kind = 0;
};

template <class Env>
std::shared_ptr<Engine> make(int num_envs, ef_autoreset mode, bool keeps_last_obs = false) {
  std::vector<ef_value> values(num_envs);
  std::vector<const ef_value*> configs;
  for (int id = 0; id < num_envs; ++id) {
    values[id].type = EF_INTEGER;
    values[id].integer = id;
    configs.push_back(&values[id]);
  }
  EngineOptions options = options_of(num_envs, num_envs, 1, mode, keeps_last_obs);
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
  for (const Fault& fault : engine.received_faults()) {
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
  const auto in_lanes = make<Env>(num_envs, mode, throws);
  const auto alone = make<Sum>(num_envs, mode, throws);
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
      compare<SumInColumns>(num_envs, mode, false);
    }
  }
}

TEST(envs_that_throw_in_a_group) {
  for (const ef_autoreset mode : kModes) {
    for (const int num_envs : {5, 64, 150}) {
      compare<SumInLanes>(num_envs, mode, true);
      compare<SumInThrees>(num_envs, mode, true);
      compare<SumInColumns>(num_envs, mode, true);
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

TEST(columns_and_structs_are_one_state) {
  const auto engine = make<SumInColumns>(12, EF_NEXT_STEP);
  see(*engine, Request::reset, nullptr, 12);
  const auto step = [&] { return see(*engine, Request::step, nullptr, 12).numbers; };
  step();
  const std::string saved = engine->get_state(5);
  const auto expected = step();
  CHECK(step() != expected);
  engine->set_state(5, saved.data(), static_cast<std::int64_t>(saved.size()));
  // The row of env 5 as it was; the others are one step further.
  const auto repeated = step();
  CHECK(std::equal(repeated.begin() + 5 * 7, repeated.begin() + 6 * 7, expected.begin() + 5 * 7));
  CHECK(repeated != expected);
  engine->fleet().visit_fields(3, [](const char* name, std::int32_t, std::int64_t, void* data) {
    if (std::string(name) == "numbers") static_cast<double*>(data)[SumInColumns::kSum] = 1000;
  });
  CHECK_EQUAL(see(*engine, Request::observe, nullptr, 12).numbers[3 * 3 + 1], step()[3 * 7 + 1]);
  CHECK(engine->close(-1));
}

TEST(envs_of_different_kinds_are_stepped_apart) {
  const auto engine = make<SumInColumns>(64, EF_NEXT_STEP);
  see(*engine, Request::reset, nullptr, 64);
  const auto set_kind = [&](int env_id, std::uint32_t kind) {
    engine->fleet().visit_fields(env_id, [&](const char* name, std::int32_t, std::int64_t, void* data) {
      if (std::string(name) == "kind") std::memcpy(data, &kind, sizeof kind);
    });
  };
  for (int id = 32; id < 64; ++id) set_kind(id, 1);
  SumInColumns::num_groups.clear();
  see(*engine, Request::step, nullptr, 64);
  CHECK(SumInColumns::num_groups == (std::map<int, std::int64_t>{{32, 2}}));
  set_kind(0, 2);  // one that step_lanes() refuses
  SumInColumns::num_groups.clear();
  see(*engine, Request::step, nullptr, 64);
  CHECK(SumInColumns::num_groups == (std::map<int, std::int64_t>{{32, 1}, {16, 1}, {8, 1}, {4, 1}}));
  CHECK(engine->close(-1));
}

TEST(columns_whose_group_throws) {
  const auto engine = make<SumInColumns>(12, EF_NEXT_STEP);
  see(*engine, Request::reset, nullptr, 12);
  SumInColumns::throws_in_lanes = true;
  std::vector<std::int32_t> ids = {9, 1, 8, 2};
  for (const auto* given : {static_cast<const std::vector<std::int32_t>*>(nullptr), &std::as_const(ids)}) {
    const std::int64_t count = given == nullptr ? 12 : 4;
    const Seen seen = see(*engine, Request::step, given, count);
    CHECK_EQUAL(seen.faults.size(), static_cast<std::size_t>(count));
    CHECK(seen.faults[0].second == "some lane");
    reset_all(*engine, seen.faults);
  }
  SumInColumns::throws_in_lanes = false;
  CHECK(see(*engine, Request::step, nullptr, 12).faults.empty());
  CHECK(engine->close(-1));
}
