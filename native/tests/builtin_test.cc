// The built-in envs under the sanitizers: each is reset and stepped with actions of its space.
#include "engine/env_types.h"
#include "tests/test_envs.h"

using namespace test;

namespace {

void store_random_action(Engine& engine, std::int32_t env, std::minstd_rand& random) {
  const ef_array& space = engine.spec().action;
  const auto uniform = [&] { return std::uniform_real_distribution<double>()(random); };
  std::int64_t size = 1;
  for (int axis = 0; axis < space.ndim; ++axis) size *= space.shape[axis];
  char* slot = engine.action_slot(env);
  for (std::int64_t i = 0; i < size; ++i) {
    const double low = space.kind == EF_BOX ? std::max(space.low[space.num_bounds == 1 ? 0 : i], -10.0) : 0;
    const double high = space.kind == EF_BOX ? std::min(space.high[space.num_bounds == 1 ? 0 : i], 10.0) : 0;
    const double real = low + (high - low) * uniform();
    const auto put = [&](auto value) { std::memcpy(slot + i * sizeof(value), &value, sizeof(value)); };
    switch (space.kind) {
      case EF_DISCRETE:
        put(static_cast<std::int32_t>(space.start + random() % space.count));
        break;
      case EF_MULTI_DISCRETE:
        put(static_cast<std::int32_t>(random() % space.nvec[i]));
        break;
      case EF_MULTI_BINARY:
        put(static_cast<std::int8_t>(random() % 2));
        break;
      default:
        space.dtype == EF_FLOAT64 ? put(real) : put(static_cast<float>(real));
    }
  }
}

}  // namespace

TEST(every_built_in_env_runs) {
  std::minstd_rand random(11);
  CHECK(!envfleet::engine::list_env_types().empty());
  CHECK(envfleet::engine::find_env_type("No-such-env-v0") == nullptr);
  for (const std::string& id : envfleet::engine::list_env_types()) {
    const ef_env_type* type = envfleet::engine::find_env_type(id);
    std::vector<ef_value> values;
    for (int i = 0; i < type->num_params; ++i) values.push_back(type->params[i].default_value);
    for (const ef_autoreset mode : {EF_NEXT_STEP, EF_SAME_STEP}) {
      std::printf("  %s\n", id.c_str());
      EngineOptions options;
      options.num_envs = options.batch_size = 6;
      options.num_threads = 2;
      options.autoreset = mode;
      options.max_episode_steps = 40;
      const auto engine = Engine::make(*type, options, {values.data()});
      const ef_array& action = engine->spec().action;
      if (action.kind == EF_BOX && action.dtype != EF_FLOAT32 && action.dtype != EF_FLOAT64) continue;
      for (int env = 0; env < 6; ++env) {
        const std::uint32_t words[4] = {static_cast<std::uint32_t>(env), 0, 0, 0};
        engine->seed(env, words);
      }
      Batch(engine->run(Request::reset, nullptr, 6));
      for (int i = 0; i < 200; ++i) {
        for (int env = 0; env < 6; ++env) store_random_action(*engine, env, random);
        Batch(engine->run(Request::step, nullptr, 6));
      }
      Batch(engine->run(Request::observe, nullptr, 6));
      for (const Fault& fault : engine->received_faults()) check::fail(__FILE__, __LINE__, id + ": " + fault.what);
      CHECK(engine->close(-1));
    }
  }
}
