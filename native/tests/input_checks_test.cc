// IdChecker, ActionStore and what an engine accepts: what is plainly right, and what is not; usable_cores.
#include "engine/input_checks.h"

#include <cmath>
#include <limits>

#include "engine/cores.h"
#include "tests/test_envs.h"

using namespace test;
using envfleet::Space;
using envfleet::engine::ActionSlots;
using envfleet::engine::ActionStore;
using envfleet::engine::IdChecker;

namespace {

constexpr int kNumEnvs = 4;

EngineOptions options_of(ef_autoreset autoreset = EF_NEXT_STEP) {
  EngineOptions options;
  options.num_envs = options.batch_size = kNumEnvs;
  options.autoreset = autoreset;
  return options;
}

// Env 3 is in flight.
bool accepts_ids(const std::vector<std::int32_t>& ids) {
  static IdChecker checker(kNumEnvs);
  return checker.accepts(ids.data(), static_cast<std::int64_t>(ids.size()), [](std::int32_t env_id) { return env_id == 3; });
}

// Whether steps of these envs are accepted, with actions that are.
bool may_step(Engine& engine, const std::int32_t* env_ids, std::int64_t count) {
  const std::vector<std::int32_t> actions(static_cast<std::size_t>(count), 0);
  return engine.accepts({actions.data(), EF_INT32, env_ids, count});
}

// An env that never runs: its action space is all that matters. Action is the type that fits it.
template <class Action, class MakeSpace>
struct Acting {
  static void spec(const Config&, Spec& spec) {
    spec.observation(envfleet::scalar<float>());
    spec.action(MakeSpace{}());
  }
  void reset(Rng&, Out&) {}
  void step(Action, Out&) {}
};

// Stores one action into the slot of env 2 and says whether it was taken; `stored` is what is in the slot then.
template <class Env, class Target, class Source>
bool stores(const std::vector<Source>& action, std::vector<Target>* stored = nullptr) {
  static const ef_env_type* type = envfleet::detail::make_type<Env>("Acting-v0");
  static const auto engine = Engine::make(*type, options_of(), {nullptr});
  static const ActionStore store(engine->spec().action);
  constexpr std::int32_t dtype = envfleet::dtype_of<Source>();
  if (!store.takes(dtype)) return false;
  CHECK_EQUAL(engine->action_bytes(), static_cast<std::int64_t>(action.size() * sizeof(Target)));
  const std::int32_t id = 2;
  const bool is_accepted = store.accepts(action.data(), dtype, 1);
  if (!store.store(engine->action_slots(), action.data(), dtype, &id, 1)) {
    CHECK(!is_accepted);
    // As if it had been accepted and then changed.
    store.store_valid(engine->action_slots(), action.data(), dtype, &id, 1);
    CHECK(store.accepts(engine->action_slot(id), envfleet::dtype_of<Target>(), 1));
    return false;
  }
  CHECK(is_accepted);
  const auto* slot = reinterpret_cast<const Target*>(engine->action_slot(id));
  if (stored != nullptr) stored->assign(slot, slot + action.size());
  // The same for all envs at once: the other way through store().
  std::vector<Source> all;
  for (int env = 0; env < kNumEnvs; ++env) all.insert(all.end(), action.begin(), action.end());
  CHECK(store.store(engine->action_slots(), all.data(), dtype, nullptr, kNumEnvs));
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK_EQUAL(reinterpret_cast<const Target*>(engine->action_slot(0))[i], static_cast<Target>(all[i]));
  }
  return true;
}

struct FiveFromMinusOne {
  Space operator()() const { return envfleet::discrete(5, -1); }
};
struct ThreeAndTwo {
  Space operator()() const { return envfleet::multi_discrete({3, 2}); }
};
struct ThreeBits {
  Space operator()() const { return envfleet::multi_binary(3); }
};
struct FloatPair {
  Space operator()() const { return envfleet::box<float>({-0.1, 0.0}, {0.1, envfleet::infinity}); }
};
struct FloatOne {
  Space operator()() const { return envfleet::box<float>({1}, -0.1, 2); }
};
struct DoubleOne {
  Space operator()() const { return envfleet::box<double>({1}, -1, 1); }
};
struct ByteOne {
  Space operator()() const { return envfleet::box<std::uint8_t>({1}, 0, 9); }
};

using Discrete = Acting<int, FiveFromMinusOne>;
using MultiDiscrete = Acting<const std::int32_t*, ThreeAndTwo>;
using MultiBinary = Acting<const std::int8_t*, ThreeBits>;
using FloatBox = Acting<const float*, FloatPair>;
using FloatOneBox = Acting<const float*, FloatOne>;
using DoubleBox = Acting<const double*, DoubleOne>;
using ByteBox = Acting<const std::uint8_t*, ByteOne>;

using i64 = std::int64_t;
using i32 = std::int32_t;
using i8 = std::int8_t;
using u8 = std::uint8_t;

}  // namespace

TEST(ids) {
  CHECK(accepts_ids({0}));
  CHECK(accepts_ids({2, 0, 1}));
  CHECK(accepts_ids({0}));  // a stamp of the call before is no duplicate
  CHECK(!accepts_ids({0, 1, 0}));
  CHECK(accepts_ids({0, 1}));
  CHECK(!accepts_ids({4}));
  CHECK(!accepts_ids({-1}));
  CHECK(!accepts_ids({std::numeric_limits<i32>::min()}));
  CHECK(!accepts_ids({std::numeric_limits<i32>::max()}));
  CHECK(!accepts_ids({3}));  // in flight
  CHECK(!accepts_ids({0, 3}));
}

TEST(runs_of_consecutive_ids) {
  constexpr i32 kMany = 200;
  IdChecker checker(kMany);
  const auto accepts = [&](std::vector<std::pair<i32, i32>> runs, i32 in_flight = -1) {
    std::vector<i32> ids;
    for (const auto& [begin, end] : runs) {
      for (i64 id = begin; id < end; ++id) ids.push_back(static_cast<i32>(id));
    }
    return checker.accepts(ids.data(), static_cast<i64>(ids.size()), [&](i32 env_id) { return env_id == in_flight; });
  };
  CHECK(accepts({{0, kMany}}));
  CHECK(accepts({{100, kMany}, {0, 100}}));
  CHECK(accepts({{7, 8}, {64, 128}, {0, 7}}));
  CHECK(!accepts({{0, 64}, {63, 127}}));
  CHECK(!accepts({{64, 128}, {64, 65}}));
  CHECK(!accepts({{137, 201}}));
  CHECK(!accepts({{-1, 63}}));
  CHECK(!accepts({{std::numeric_limits<i32>::max() - 63, std::numeric_limits<i32>::max()}}));
  for (const i32 busy : {0, 63, 64, 199}) CHECK(!accepts({{0, kMany}}, busy));
  CHECK(accepts({{0, 64}}, 64));
}

TEST(actions_of_runs_of_envs) {
  constexpr int kMany = 150;
  const auto spec = envfleet::engine::describe(*envfleet::detail::make_type<Discrete>("Discrete-v0"), nullptr);
  const ActionStore store(spec->action);
  std::vector<i32> stored(kMany);
  const ActionSlots slots{reinterpret_cast<char*>(stored.data()), sizeof(i32)};
  std::vector<i32> ids(kMany);
  std::iota(ids.begin(), ids.end(), 0);
  for (const int start : {0, 3, 100}) {
    std::rotate(ids.begin(), ids.begin() + start, ids.end());
    std::vector<i64> actions(kMany);
    for (int i = 0; i < kMany; ++i) actions[i] = (ids[i] + start) % 4;
    CHECK(store.store(slots, actions.data(), EF_INT64, ids.data(), kMany));
    for (int id = 0; id < kMany; ++id) CHECK_EQUAL(stored[id], (id + start) % 4);
    for (const int bad : {0, 63, 64, kMany - 1}) {
      for (const i64 value : {i64{4}, i64{1} << 32}) {
        std::vector<i64> wrong = actions;
        wrong[bad] = value;
        CHECK(!store.store(slots, wrong.data(), EF_INT64, ids.data(), kMany));
        CHECK(!store.store(slots, wrong.data(), EF_INT64, nullptr, kMany));
      }
    }
  }
}

TEST(discrete_actions) {
  for (const i64 good : {-1, 0, 3}) {
    std::vector<i32> stored;
    CHECK((stores<Discrete, i32, i64>({good}, &stored)));
    CHECK_EQUAL(stored[0], static_cast<i32>(good));
    CHECK((stores<Discrete, i32, i32>({static_cast<i32>(good)})));
  }
  for (const i64 bad : {i64{-2}, i64{4}, i64{1} << 32, std::numeric_limits<i64>::min(), std::numeric_limits<i64>::max()}) {
    CHECK((!stores<Discrete, i32, i64>({bad})));
  }
  CHECK((!stores<Discrete, i32, float>({1.0f})));
  CHECK((!stores<Discrete, i32, i8>({1})));
}

TEST(multi_discrete_actions) {
  std::vector<i32> stored;
  CHECK((stores<MultiDiscrete, i32, i64>({2, 1}, &stored)));
  CHECK(stored == std::vector<i32>({2, 1}));
  CHECK((stores<MultiDiscrete, i32, i32>({0, 0})));
  CHECK((!stores<MultiDiscrete, i32, i64>({3, 0})));
  CHECK((!stores<MultiDiscrete, i32, i64>({2, 2})));
  CHECK((!stores<MultiDiscrete, i32, i64>({-1, 0})));
  CHECK((!stores<MultiDiscrete, i32, i64>({i64{1} << 32, 0})));
  CHECK((!stores<MultiDiscrete, i32, double>({0, 0})));
}

TEST(multi_binary_actions) {
  CHECK((stores<MultiBinary, i8, i8>({0, 1, 1})));
  CHECK((!stores<MultiBinary, i8, i8>({0, 2, 1})));
  CHECK((!stores<MultiBinary, i8, i8>({0, -1, 1})));
  CHECK((!stores<MultiBinary, i8, i64>({0, 1, 1})));
}

TEST(box_actions) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  CHECK((stores<FloatBox, float, float>({0.1f, 5.0f})));
  CHECK((stores<FloatBox, float, float>({-0.1f, inf})));
  CHECK((stores<FloatBox, float, double>({0.1, 1e30})));  // judged as the float32 that it becomes
  CHECK((!stores<FloatBox, float, float>({0.11f, 0.0f})));
  CHECK((!stores<FloatBox, float, float>({0.0f, -1e-6f})));
  CHECK((!stores<FloatBox, float, float>({nan, 0.0f})));
  CHECK((!stores<FloatBox, float, double>({0.0, std::nan("")})));
  CHECK((!stores<FloatBox, float, i32>({0, 0})));
  CHECK((stores<DoubleBox, double, double>({1.0})));
  CHECK((!stores<DoubleBox, double, double>({std::nextafter(1.0, 2.0)})));
  CHECK((!stores<DoubleBox, double, float>({1.0f})));
  CHECK((stores<ByteBox, u8, u8>({9})));
  CHECK((!stores<ByteBox, u8, u8>({10})));
}

TEST(one_float_per_action) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const float inside : {-0.1f, 0.0f, 2.0f}) CHECK((stores<FloatOneBox, float, float>({inside})));
  const float outside[] = {std::nextafter(-0.1f, -1.0f), std::nextafter(2.0f, 3.0f), nan, inf, -inf};
  for (const float value : outside) CHECK((!stores<FloatOneBox, float, float>({value})));
  // In a batch of any size, at any place: vector code has remainders.
  static const ef_env_type* type = envfleet::detail::make_type<FloatOneBox>("Acting-v1");
  const auto engine = Engine::make(*type, options_of(), {nullptr});
  const ActionStore store(engine->spec().action);
  for (int count = 0; count <= 70; ++count) {
    std::vector<float> actions(count, 2.0f);
    CHECK(store.accepts(actions.data(), EF_FLOAT32, count));
    for (int place = 0; place < count; ++place) {
      actions[place] = outside[(place + count) % 5];
      CHECK(!store.accepts(actions.data(), EF_FLOAT32, count));
      actions[place] = -0.1f;
    }
  }
}

TEST(envs_that_may_step) {
  for (const ef_autoreset mode : {EF_NEXT_STEP, EF_DISABLED}) {
    const auto engine = make_engine<Marked>(options_of(mode), {.episode = 2});
    const std::int32_t some[] = {0, 1}, rest[] = {2, 3};
    CHECK(!may_step(*engine, nullptr, kNumEnvs));
    Batch(engine->run(Request::reset, some, 2));
    CHECK(may_step(*engine, some, 2));
    CHECK(!may_step(*engine, rest, 2));
    CHECK(!may_step(*engine, nullptr, kNumEnvs));
    Batch(engine->run(Request::reset, rest, 2));
    CHECK(may_step(*engine, nullptr, kNumEnvs));
    for (int i = 0; i < 2; ++i) Batch(engine->run(Request::step, some, 2));
    // Ended: a step starts the next episode, unless nothing resets.
    CHECK_EQUAL(may_step(*engine, some, 2), mode == EF_NEXT_STEP);
    CHECK_EQUAL(may_step(*engine, nullptr, kNumEnvs), mode == EF_NEXT_STEP);
    engine->rebuild(3, EF_UNSTARTED);
    CHECK(!may_step(*engine, rest, 2));
    CHECK(!may_step(*engine, nullptr, kNumEnvs));
  }
}

TEST(envs_in_flight_and_wrong_input_are_not_accepted) {
  const auto engine = make_engine<Marked>(options_of());
  Batch(engine->run(Request::reset, nullptr, kNumEnvs));
  const std::int32_t some[] = {2, 0}, repeated[] = {2, 2}, absent[] = {kNumEnvs}, rest[] = {1, 3};
  CHECK(engine->are_idle(nullptr, kNumEnvs) && engine->are_idle(some, 2));
  CHECK(!engine->are_idle(repeated, 2) && !engine->are_idle(absent, 1));
  const std::vector<std::int32_t> actions(kNumEnvs, 0);
  CHECK(!engine->accepts({actions.data(), EF_FLOAT64, nullptr, kNumEnvs}));
  CHECK(!engine->accepts({}));
  CHECK(!engine->accepts({actions.data(), EF_INT32, some, 0}));
  CHECK(engine->store({actions.data(), EF_INT32, some, 2}));
  engine->start(Request::step, some, 2);
  CHECK_EQUAL(engine->num_in_flight(), 2);
  CHECK(!may_step(*engine, nullptr, kNumEnvs) && !may_step(*engine, some, 1) && may_step(*engine, rest, 2));
  Batch(engine->finish(-1, true));
  CHECK_EQUAL(engine->num_in_flight(), 0);
  CHECK(may_step(*engine, nullptr, kNumEnvs));
}

TEST(at_least_one_core) { CHECK(envfleet::engine::usable_cores() >= 1); }
