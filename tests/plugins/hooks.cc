// Envs of which any hook throws when it is told to: the subjects of tests/native/test_plugin_faults.py.
//
// One call of arm() says which hook of which env throws what, and how often. The functions exported
// here are called through ctypes, from the thread that owns the pool, while no env runs.
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "envfleet/env.h"

namespace {

using envfleet::Config;
using envfleet::Out;
using envfleet::Rng;
using envfleet::Spec;

enum Hook {
  kNone,
  kConstructor,
  kSpec,
  kReset,
  kStep,
  kStepLanes,
  kObserve,
  kRender,
  kFields,
  kFieldsChanged,
  kSave,
  kLoad,
};
enum Thrown { kException, kOtherEncoding, kNumber, kLongText };

std::atomic<int> armed_hook{kNone}, armed_thrown{0}, armed_env{-1}, throws_left{0};
std::atomic<int> frame_height{2}, frame_width{3}, frame_bytes{18};

void reach(Hook hook, std::int64_t env) {
  if (armed_hook != hook || armed_env != env || throws_left.fetch_sub(1) <= 0) return;
  switch (armed_thrown) {
    case kException:
      throw std::runtime_error("joint 3 exploded");
    case kOtherEncoding:
      throw std::runtime_error("caf\xe9 \xff");  // Latin-1, not UTF-8
    case kLongText: {
      std::string text = "x";  // odd: the limit of a text is even, and lies inside a character
      for (int i = 0; i < 1000; ++i) text += "\xc3\xa9";
      throw std::runtime_error(text);
    }
    default:
      throw 42;
  }
}

class Hooks {
 public:
  static envfleet::Params params() {
    return {{"mark", 0, "which env this is"},
            {"burn_us", 0, "how long a reset or step takes"},
            {"episode", 3, "steps until it terminates"}};
  }
  static void spec(const Config& config, Spec& spec) {
    reach(kSpec, config.integer("mark"));
    spec.observation(envfleet::box<std::int64_t>({4}));
    spec.action(envfleet::discrete(2));
  }
  explicit Hooks(const Config& config)
      : mark_(config.integer("mark")), burn_us_(config.integer("burn_us")), episode_(config.integer("episode")) {
    reach(kConstructor, mark_);
  }
  void reset(Rng& rng, Out& out) {
    burn();
    out.obs<std::int64_t>()[3] = -1;  // before it throws: the row must come back as zeros all the same
    start_ = rng.integers(0, 1'000'000);
    count_ = sum_ = 0;
    reach(kReset, mark_);
    write(out.obs<std::int64_t>());
  }
  void step(int action, Out& out) {
    burn();
    out.obs<std::int64_t>()[3] = -1;
    advance(action);
    reach(kStep, mark_);
    out.reward = static_cast<double>(start_ % 7 + count_);
    out.terminated = count_ == episode_;
    write(out.obs<std::int64_t>());
  }
  void observe(Out& out) {
    reach(kObserve, mark_);
    write(out.obs<std::int64_t>());
  }
  void render(envfleet::Frame& frame) {
    reach(kRender, mark_);
    frame.height = frame_height;
    frame.width = frame_width;
    frame.rgb.assign(frame_bytes, static_cast<std::uint8_t>(count_));
  }
  template <class Visitor>
  void fields(Visitor& visit) {
    visit("start", start_);
    visit("count", count_);
    reach(kFields, mark_);
    visit("doubled", doubled_);
    visit("flag", flag_);
    visit("i8", i8_);
    visit("u8", u8_);
    visit("i16", i16_);
    visit("u16", u16_);
    visit("i32", i32_);
    visit("u32", u32_);
    visit("i64", i64_);
    visit("u64", u64_);
    visit("f32", f32_);
    visit("f64", f64_);
    visit("pair", pair_);
  }
  void fields_changed() {
    doubled_ = -1;  // half done when it throws
    reach(kFieldsChanged, mark_);
    doubled_ = 2 * count_;
  }

 protected:
  void advance(int action) { doubled_ = 2 * (count_ += 1), sum_ = sum_ * 3 + action; }
  void write(std::int64_t* obs) const {
    obs[0] = mark_;
    obs[1] = start_;
    obs[2] = count_;
    obs[3] = sum_;
  }
  void burn() const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(burn_us_);
    while (burn_us_ > 0 && std::chrono::steady_clock::now() < end) {
    }
  }

  std::int64_t mark_, burn_us_, episode_;
  std::int64_t start_ = 0, count_ = 0, sum_ = 0, doubled_ = 0;
  bool flag_ = false;
  std::int8_t i8_ = 0;
  std::uint8_t u8_ = 0;
  std::int16_t i16_ = 0;
  std::uint16_t u16_ = 0;
  std::int32_t i32_ = 0;
  std::uint32_t u32_ = 0;
  std::int64_t i64_ = 0;
  std::uint64_t u64_ = 0;
  float f32_ = 0;
  double f64_ = 0;
  float pair_[2] = {0, 0};
};

// Steps three at once; of an env whose mark is even it leaves the last element of the row to the engine.
class HooksLanes : public Hooks {
 public:
  static constexpr int lanes = 3;
  using Hooks::Hooks;

  static bool step_lanes(HooksLanes* const* envs, const std::int32_t* actions, envfleet::LaneOut<lanes>& out) {
    for (int lane = 0; lane < lanes; ++lane) {
      HooksLanes& env = *envs[lane];
      env.burn();
      env.advance(actions[lane]);
      std::int64_t* obs = out.obs<std::int64_t>() + 4 * lane;
      const std::int64_t untouched = obs[3];
      env.write(obs);
      if (env.mark_ % 2 == 0) obs[3] = untouched;
      out.reward[lane] = static_cast<double>(env.start_ % 7 + env.count_);
      out.terminated[lane] = env.count_ == env.episode_;
      reach(kStepLanes, env.mark_);
    }
    return true;
  }
  void step(int action, Out& out) {
    reach(kStepLanes, mark_);  // how many rows are run at once depends on how long they take
    Hooks::step(action, out);
    if (mark_ % 2 == 0) out.obs<std::int64_t>()[3] = 0;
  }
};

// Keeps its state to itself, and does not observe(): the engine keeps a copy of its rows.
class HooksOpaque {
 public:
  static envfleet::Params params() { return Hooks::params(); }
  static void spec(const Config& config, Spec& spec) { Hooks::spec(config, spec); }
  explicit HooksOpaque(const Config& config) : mark_(config.integer("mark")) {}
  void reset(Rng& rng, Out& out) {
    count_ = rng.integers(0, 1000);
    *out.obs<std::int64_t>() = count_;
  }
  void step(int action, Out& out) {
    count_ += 1 + action;
    *out.obs<std::int64_t>() = count_;
  }
  void save(envfleet::StateWriter& writer) {
    reach(kSave, mark_);
    writer.put(count_);
  }
  void load(envfleet::StateReader& reader) {
    count_ = reader.get<std::int64_t>();
    reach(kLoad, mark_);
  }

 private:
  std::int64_t mark_, count_ = 0;
};

}  // namespace

ENVFLEET_EXPORT void arm(int hook, int thrown, int env, int times) {
  armed_thrown = thrown;
  armed_env = env;
  throws_left = times;
  armed_hook = hook;
}

ENVFLEET_EXPORT void set_frame(int height, int width, int num_bytes) {
  frame_height = height;
  frame_width = width;
  frame_bytes = num_bytes;
}

ENVFLEET_ENV("Hooks-v0", Hooks)
ENVFLEET_ENV("HooksLanes-v0", HooksLanes)
ENVFLEET_ENV("HooksOpaque-v0", HooksOpaque)
