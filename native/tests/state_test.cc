// get_state and set_state: an env goes on, bit for bit, from where it was saved, in this engine or another.
#include "engine/fleet_handle.h"
#include "tests/test_envs.h"

using namespace test;
using envfleet::StateReader;
using envfleet::StateWriter;
using envfleet::engine::FleetError;

namespace {

// Depends on its own generator and on the whole past: any bit that a state forgets shows up.
struct Walker {
  static void spec(const Config&, Spec& spec) {
    spec.observation(envfleet::box<double>({2}));
    spec.action(envfleet::discrete(3));
  }
  void reset(Rng& rng, Out& out) {
    trail = {rng.random()};
    write(out);
  }
  void step(int action, Rng& rng, Out& out) {
    trail.push_back(trail.back() * 0.5 + action + rng.normal());
    if (trail.size() > 9) trail.erase(trail.begin());
    calls[action] += 1;
    out.terminated = rng.integers(0, 20) == 0;
    write(out);
  }
  void write(Out& out) {
    auto* obs = out.obs<double>();
    for (const double value : trail) obs[0] += value;
    obs[1] = calls[0] + 100 * calls[1] + 10000 * calls[2];
  }
  template <class Visitor>
  void fields(Visitor& visit) {
    visit("trail", trail);
    visit("calls", calls);
  }
  std::vector<double> trail;
  std::int32_t calls[3] = {0, 0, 0};
};

// The same with save() and load(), for state that fields() cannot name.
struct OpaqueWalker : private Walker {
  using Walker::reset;
  using Walker::spec;
  using Walker::step;
  void save(StateWriter& writer) { Walker::fields(writer); }
  void load(StateReader& reader) { Walker::fields(reader); }
};

constexpr int kNumEnvs = 5;

template <class Env>
std::shared_ptr<Engine> make_walkers(bool keeps_last_obs = false) {
  EngineOptions options;
  options.num_envs = options.batch_size = kNumEnvs;
  options.num_threads = 2;
  options.max_episode_steps = 15;
  options.keeps_last_obs = keeps_last_obs;
  auto engine = Engine::make(type_of<Env>(), options, {nullptr});
  for (int env = 0; env < kNumEnvs; ++env) {
    const std::uint32_t words[4] = {static_cast<std::uint32_t>(env), 0, 0, 0};
    engine->seed(env, words);
  }
  Batch(engine->run(Request::reset, nullptr, kNumEnvs));
  return engine;
}

// Everything that a number of steps gave out.
std::vector<double> trace(Engine& engine, int num_steps, int first) {
  std::vector<double> seen;
  for (int i = first; i < first + num_steps; ++i) {
    for (int env = 0; env < kNumEnvs; ++env) {
      const std::int32_t action = (i + env) % 3;
      std::memcpy(engine.action_slot(env), &action, sizeof(action));
    }
    Batch batch(engine.run(Request::step, nullptr, kNumEnvs));
    const auto* obs = static_cast<double*>(batch->rows().obs[0]);
    seen.insert(seen.end(), obs, obs + 2 * kNumEnvs);
    for (int env = 0; env < kNumEnvs; ++env) {
      seen.push_back(batch->rows().terminated[env] + 2 * batch->rows().truncated[env]);
      seen.push_back(batch->rows().elapsed_step[env]);
    }
  }
  return seen;
}

template <class Env>
void check_round_trip() {
  const auto engine = make_walkers<Env>();
  trace(*engine, 50, 0);
  std::vector<std::string> states;
  for (int env = 0; env < kNumEnvs; ++env) states.push_back(engine->get_state(env));
  const std::vector<double> expected = trace(*engine, 100, 50);
  const auto other = make_walkers<Env>();
  for (Engine* target : {engine.get(), other.get()}) {
    for (int env = 0; env < kNumEnvs; ++env) target->set_state(env, states[env].data(), states[env].size());
    for (int env = 0; env < kNumEnvs; ++env) CHECK(target->get_state(env) == states[env]);
    CHECK(trace(*target, 100, 50) == expected);
  }
  const std::string& state = states[0];
  CHECK_THROWS(engine->set_state(0, state.data(), state.size() - 1), FleetError, "shorter");
  CHECK_THROWS(engine->set_state(0, (state + "x").data(), state.size() + 1), FleetError, "longer");
  CHECK_THROWS(engine->set_state(0, "", 0), FleetError, "shorter");
  // Behind the generator: counting on from the last number would overflow.
  for (const std::int32_t elapsed_step : {-1, INT32_MAX}) {
    std::string damaged = state;
    std::memcpy(damaged.data() + sizeof(Rng::State), &elapsed_step, sizeof(elapsed_step));
    CHECK_THROWS(engine->set_state(0, damaged.data(), damaged.size()), FleetError, "number of steps");
  }
  for (Engine* target : {engine.get(), other.get()}) CHECK(target->close(-1));
}

}  // namespace

TEST(fields_round_trip) { check_round_trip<Walker>(); }

TEST(save_and_load_round_trip) { check_round_trip<OpaqueWalker>(); }

TEST(env_without_state_says_so) {
  const auto engine = make_engine<Marked>(EngineOptions{});
  CHECK_EQUAL(engine->spec().has_state, 0);
  CHECK_THROWS(engine->get_state(0), FleetError, "neither fields() nor save() and load()");
}

TEST(the_last_observation_belongs_to_the_state) {
  const auto engine = make_walkers<Walker>(true), other = make_walkers<Walker>(true), plain = make_walkers<Walker>();
  const auto last_of = [](Engine& from) {
    Batch batch(from.run(Request::observe, nullptr, kNumEnvs));
    return static_cast<const double*>(batch->rows().obs[0])[2];
  };
  for (Engine* own : {engine.get(), plain.get()}) trace(*own, 5, 0);
  const double shown = last_of(*engine);
  // As after a fault: the env is new, and shows its last observation until its next episode.
  engine->rebuild(1, EF_ENDED);
  CHECK_EQUAL(last_of(*engine), shown);
  const std::string state = engine->get_state(1);
  CHECK(last_of(*other) != shown);
  other->set_state(1, state.data(), state.size());
  CHECK_EQUAL(last_of(*other), shown);
  CHECK(other->get_state(1) == state);
  // An engine that keeps none takes the state too, and one that keeps them takes its states.
  const std::string plain_state = plain->get_state(1);
  plain->set_state(1, state.data(), state.size());
  CHECK_EQUAL(plain->phases()[1], EF_ENDED);
  other->set_state(1, plain_state.data(), plain_state.size());
  other->rebuild(1, EF_ENDED);
  CHECK_EQUAL(last_of(*other), shown);
  for (Engine* own : {engine.get(), other.get(), plain.get()}) CHECK(own->close(-1));
}
