// Envs that show what an engine did wrong, and the bench on which the tests run them.
//
//   Marked    writes its own mark, step count and action into every column: a row that
//             ends up with another env's data, or half of it, does not pass check_row().
//             Burns a random time a step, so that envs finish in any order.
//   Gated     steps only while the test's gate is open: a result that is late on demand.
//   Thrower   throws at random, or when told to, in reset, step or observe.
//
// Thread safety: Bench is the caller of its engine; one thread at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/batch_buffer.h"
#include "engine/engine.h"
#include "engine/wait.h"
#include "envfleet/env.h"
#include "tests/check.h"

namespace test {

using envfleet::Config;
using envfleet::Out;
using envfleet::Params;
using envfleet::Rng;
using envfleet::Spec;
using envfleet::engine::BatchBuffer;
using envfleet::engine::BufferPool;
using envfleet::engine::Engine;
using envfleet::engine::EngineOptions;
using envfleet::engine::Fault;
using envfleet::engine::Request;

template <class Ready>
void wait_for(Ready&& ready) {
  while (!ready()) std::this_thread::yield();
}

// ------------------------------------------------------------------------------- envs

constexpr int kPixels = 5;  // odd: rows of neighbours share words

struct Marked {
  static Params params() {
    return {{"mark", 0, "what it writes into its rows"},
            {"episode", 7, "steps until it terminates"},
            {"burn_ns", 0, "the longest time a step burns"}};
  }
  static void spec(const Config&, Spec& spec) {
    spec.observation("mark", envfleet::box<std::int32_t>({3}));
    spec.observation("pixels", envfleet::box<std::uint8_t>({kPixels}, 0, 255));
    spec.action(envfleet::discrete(1000));
    spec.info("echo", envfleet::scalar<std::int64_t>());
  }

  explicit Marked(const Config& config)
      : mark(static_cast<std::int32_t>(config.integer("mark"))),
        episode(static_cast<std::int32_t>(config.integer("episode"))),
        burn_ns(config.integer("burn_ns")) {}

  void reset(Rng& rng, Out& out) {
    count = 0;
    burn(rng);
    write(-1, out);
  }
  void step(int action, Rng& rng, Out& out) {
    burn(rng);
    ++count;
    out.reward = mark + 0.001 * count;
    out.terminated = count == episode;
    write(action, out);
  }

  void burn(Rng& rng) const {
    if (burn_ns == 0) return;
    const std::int64_t end = envfleet::engine::now_ns() + rng.integers(0, burn_ns);
    while (envfleet::engine::now_ns() < end) envfleet::engine::relax_cpu();
  }
  void write(std::int32_t action, Out& out) const {
    auto* words = out.obs<std::int32_t>(0);
    words[0] = mark;
    words[1] = count;
    words[2] = action;
    auto* pixels = out.obs<std::uint8_t>(1);
    for (int i = 0; i < kPixels; ++i) pixels[i] = pixel(mark, count, i);
    *out.info<std::int64_t>() = echo(mark, action);
  }
  static std::uint8_t pixel(std::int32_t mark, std::int32_t count, int i) {
    return static_cast<std::uint8_t>(mark * 31 + count * 7 + i);
  }
  static std::int64_t echo(std::int32_t mark, std::int32_t action) { return (std::int64_t{mark} << 32) + action; }

  std::int32_t mark, episode;
  std::int64_t burn_ns;
  std::int32_t count = 0;
};

struct Gated : Marked {
  // One gate for all: only envs of the running test pass it.
  static inline std::atomic<bool> is_open{true};
  static inline std::atomic<int> num_entered{0};
  static inline std::atomic<int> num_alive{0};
  static void close_gate() {
    num_entered = 0;
    is_open = false;
  }

  explicit Gated(const Config& config) : Marked(config) { ++num_alive; }
  Gated(const Gated&) = delete;
  ~Gated() { --num_alive; }

  void step(int action, Rng& rng, Out& out) {
    ++num_entered;
    wait_for([] { return is_open.load(); });
    Marked::step(action, rng, out);
  }
};

constexpr int kThrowException = 901, kThrowNumber = 902;

struct Thrower : Marked {
  static Params params() {
    Params params = Marked::params();
    params.push_back({"chance", 0.0, "of a reset or step that throws"});
    return params;
  }
  static void spec(const Config& config, Spec& spec) {
    Marked::spec(config, spec);
    spec.reset_option("throw").reset_option("throw_in_observe");
  }

  explicit Thrower(const Config& config) : Marked(config), chance(config.real("chance")) {}

  void reset(Rng& rng, Out& out) {
    write(-1, out);  // first: the row of an env that throws must come back cleared all the same
    throws_in_observe = out.option("throw_in_observe", 0) != 0;
    if (out.option("throw", 0) != 0 || rng.random() < chance) throw std::runtime_error("reset of " + std::to_string(mark));
    Marked::reset(rng, out);
  }
  void step(int action, Rng& rng, Out& out) {
    write(action, out);
    if (action == kThrowException || rng.random() < chance) throw std::runtime_error("step of " + std::to_string(mark));
    if (action == kThrowNumber) throw 3;
    Marked::step(action, rng, out);
  }
  void observe(Out& out) {
    if (throws_in_observe && mark % 2 == 1) throw std::runtime_error("observe of " + std::to_string(mark));
    auto* words = out.obs<std::int32_t>(0);
    words[0] = mark;
    words[1] = count;
  }

  double chance;
  bool throws_in_observe = false;
};

// ------------------------------------------------------------------------------ bench

struct Release {
  void operator()(BatchBuffer* buffer) const { BufferPool::release(buffer); }
};
using Batch = std::unique_ptr<BatchBuffer, Release>;

template <class Env>
const ef_env_type& type_of() {
  static const ef_env_type* type = envfleet::detail::make_type<Env>("Test-v0");
  return *type;
}

struct EnvSettings {
  int episode = 7;
  int burn_ns = 0;
  double chance = 0.0;
};

inline EngineOptions options_of(int num_envs, int batch_size, int num_threads, ef_autoreset autoreset = EF_NEXT_STEP,
                                bool keeps_last_obs = false) {
  EngineOptions options;
  options.num_envs = num_envs;
  options.batch_size = batch_size;
  options.num_threads = num_threads;
  options.autoreset = autoreset;
  options.keeps_last_obs = keeps_last_obs;
  return options;
}

// The config of env 0, 1, 2 ...: its mark is its id, and so rows tell whose they are.
template <class Env>
std::shared_ptr<Engine> make_engine(const EngineOptions& options, const EnvSettings& settings = {}) {
  std::vector<std::vector<ef_value>> values;
  std::vector<const ef_value*> configs;
  for (int env = 0; env < options.num_envs; ++env) {
    std::vector<ef_value>& value = values.emplace_back();
    for (const ef_param& param : envfleet::detail::params_of<Env>()) value.push_back(param.default_value);
    value[0].integer = env;
    value[1].integer = settings.episode;
    value[2].integer = settings.burn_ns;
    if (value.size() > 3) value[3].real = settings.chance;
  }
  for (const auto& value : values) configs.push_back(value.data());
  auto engine = Engine::make(type_of<Env>(), options, configs);
  for (int env = 0; env < options.num_envs; ++env) {
    const std::uint32_t words[4] = {static_cast<std::uint32_t>(env), 0, 0, 0};
    engine->seed(env, words);
  }
  return engine;
}

// An engine, and beside it what each env should do (in the mode EF_NEXT_STEP).
template <class Env>
class Bench {
 public:
  explicit Bench(const EngineOptions& options, const EnvSettings& settings = {})
      : engine(make_engine<Env>(options, settings)), settings_(settings), models_(options.num_envs), all_(options.num_envs) {
    std::iota(all_.begin(), all_.end(), 0);
  }
  ~Bench() {
    if (engine != nullptr && !engine->is_closed()) CHECK(engine->close(-1));
  }

  const std::vector<std::int32_t>& all() const { return all_; }
  std::int64_t num_envs() const { return static_cast<std::int64_t>(all_.size()); }

  // Notes what these envs are about to do; the engine is to be told next.
  void expect(Request request, const std::vector<std::int32_t>& ids) {
    for (const std::int32_t id : ids) {
      Model& model = models_[id];
      CHECK(!model.is_in_flight);
      model.is_in_flight = true;
      model.is_reset = request == Request::reset || model.has_ended;
      model.action = static_cast<std::int32_t>(random_() % 900);
      std::memcpy(engine->action_slot(id), &model.action, sizeof(model.action));
    }
  }
  void set_action(std::int32_t id, std::int32_t action) { std::memcpy(engine->action_slot(id), &action, sizeof(action)); }

  void run_and_check(Request request, const std::vector<std::int32_t>* ids) {
    expect(request, ids != nullptr ? *ids : all_);
    Batch batch(engine->run(request, ids != nullptr ? ids->data() : nullptr, ids != nullptr ? ids->size() : num_envs()));
    check_ordered(*batch, ids != nullptr ? *ids : all_);
  }

  // Every row of the batch, in this order of envs.
  void check_ordered(BatchBuffer& batch, const std::vector<std::int32_t>& ids) {
    CHECK_EQUAL(batch.num_rows, static_cast<std::int64_t>(ids.size()));
    for (std::int64_t row = 0; row < batch.num_rows; ++row) {
      if (!batch.is_whole) CHECK_EQUAL(batch.env_ids()[row], ids[row]);
      check_row(batch, row, ids[row]);
    }
  }
  void check_any_order(BatchBuffer& batch) {
    for (std::int64_t row = 0; row < batch.num_rows; ++row) check_row(batch, row, batch.env_ids()[row]);
  }

  // The row is what the env should have done; it is idle from now on.
  void check_row(BatchBuffer& batch, std::int64_t row, std::int32_t id) {
    Model& model = models_.at(id);
    CHECK(model.is_in_flight);
    model.is_in_flight = false;
    model.count = model.is_reset ? 0 : model.count + 1;
    model.has_ended = !model.is_reset && model.count == settings_.episode;
    const std::int32_t action = model.is_reset ? -1 : model.action;
    const auto* words = obs<std::int32_t>(batch, 0) + 3 * row;
    CHECK_EQUAL(words[0], id);
    CHECK_EQUAL(words[1], model.count);
    CHECK_EQUAL(words[2], action);
    const auto* pixels = obs<std::uint8_t>(batch, 1) + kPixels * row;
    for (int i = 0; i < kPixels; ++i) CHECK_EQUAL(pixels[i], Marked::pixel(id, model.count, i));
    CHECK_EQUAL(static_cast<std::int64_t*>(batch.rows().info[0])[row], Marked::echo(id, action));
    CHECK_EQUAL(batch.rows().reward[row], model.is_reset ? 0.0 : id + 0.001 * model.count);
    CHECK_EQUAL(batch.rows().terminated[row], model.has_ended ? 1 : 0);
    CHECK_EQUAL(batch.rows().truncated[row], 0);
    CHECK_EQUAL(batch.rows().elapsed_step[row], model.count);
    model.last = {true, model.count, action};
    // The rows are the caller's, who may write to them.
    for (int i = 0; i < 3; ++i) obs<std::int32_t>(batch, 0)[3 * row + i] = -7;
    for (int i = 0; i < kPixels; ++i) obs<std::uint8_t>(batch, 1)[kPixels * row + i] = 77;
  }

  // The row of an env that threw: nothing of what it wrote, but its last observation if the engine keeps that; it is to be
  // reset.
  void check_failed_row(BatchBuffer& batch, std::int64_t row, std::int32_t id) {
    Model& model = models_.at(id);
    CHECK(model.is_in_flight);
    const auto last = model.last;
    model = {};
    model.last = last;
    const bool is_kept = engine->options().keeps_last_obs && last.exists;
    const std::int32_t words[] = {is_kept ? id : 0, is_kept ? last.count : 0, is_kept ? last.action : 0};
    for (int i = 0; i < 3; ++i) CHECK_EQUAL(obs<std::int32_t>(batch, 0)[3 * row + i], words[i]);
    for (int i = 0; i < kPixels; ++i) {
      CHECK_EQUAL(obs<std::uint8_t>(batch, 1)[kPixels * row + i], is_kept ? Marked::pixel(id, last.count, i) : 0);
    }
    CHECK_EQUAL(static_cast<std::int64_t*>(batch.rows().info[0])[row], 0);
    CHECK_EQUAL(batch.rows().reward[row], 0.0);
    CHECK_EQUAL(batch.rows().terminated[row], 0);
    CHECK_EQUAL(engine->phases()[id], EF_BROKEN);
  }

  // After an drop_pending(): the envs moved, nobody saw how far.
  void forget() {
    for (Model& model : models_) model = {};
  }
  bool is_in_flight(std::int32_t id) const { return models_[id].is_in_flight; }

  template <class T>
  static T* obs(BatchBuffer& batch, int k) {
    return static_cast<T*>(batch.rows().obs[k]);
  }

  std::shared_ptr<Engine> engine;

 private:
  struct Model {
    std::int32_t count = 0, action = 0;
    bool has_ended = false, is_in_flight = false, is_reset = false;
    struct {
      bool exists = false;
      std::int32_t count = 0, action = 0;
    } last;  // the last row that was checked
  };

  const EnvSettings settings_;
  std::vector<Model> models_;
  std::vector<std::int32_t> all_;
  std::minstd_rand random_{1};
};

inline std::vector<std::int32_t> random_subset(std::int32_t num_envs, std::size_t size, std::minstd_rand& random) {
  std::vector<std::int32_t> ids(num_envs);
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), random);
  ids.resize(size);
  return ids;
}

}  // namespace test
