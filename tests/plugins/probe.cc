// Test envs that do on demand what real envs do by accident.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "envfleet/env.h"

namespace {

using envfleet::Config;
using envfleet::Out;
using envfleet::Rng;
using envfleet::Spec;

// Counts its steps; the action says what goes wrong.
class Faulty {
 public:
  enum Action { kStep, kThrow, kThrowInt, kThrowAtNextReset, kEnd, kThrowInObserve, kThrowNonsense, kNumActions };

  static envfleet::Params params() {
    return {{"fail_construction", false, "throw in the constructor"},
            {"length", 1000, "steps until the episode terminates"}};
  }
  static void spec(const Config&, Spec& spec) {
    spec.observation(envfleet::box<std::int64_t>({2}));
    spec.action(envfleet::discrete(kNumActions));
    spec.info("total", envfleet::scalar<std::int64_t>());
    spec.info("last_action", envfleet::scalar<std::int32_t>(), EF_ON_STEP);
  }
  explicit Faulty(const Config& config) : length_(config.integer("length")) {
    if (config.flag("fail_construction")) throw std::runtime_error("no licence for this simulator");
  }
  void reset(Rng& rng, Out& out) {
    if (throw_at_reset_) throw std::runtime_error("the level file is gone");
    start_ = rng.integers(0, 1'000'000);
    count_ = 0;
    *out.info<std::int64_t>(0) = total_;
    observe(out);
  }
  void step(int action, Out& out) {
    if (action == kThrow) throw std::runtime_error("joint 3 exploded");
    if (action == kThrowInt) throw 42;
    if (action == kThrowNonsense) throw std::runtime_error("caf\xe9 \xff");  // no UTF-8
    if (action == kThrowAtNextReset) throw_at_reset_ = true;
    if (action == kThrowInObserve) throw_at_observe_ = true;
    ++count_;
    ++total_;
    out.reward = static_cast<double>(count_);
    out.terminated = action == kEnd || count_ >= length_;
    *out.info<std::int64_t>(0) = total_;
    *out.info<std::int32_t>(1) = action;
    write(out);
  }
  void observe(Out& out) {
    if (throw_at_observe_) throw std::runtime_error("the camera is gone");
    write(out);
  }
  template <class Visitor>
  void fields(Visitor& visit) {
    visit("start", start_);
    visit("count", count_);
    visit("total", total_);
    visit("throw_at_reset", throw_at_reset_);
  }

 private:
  void write(Out& out) {
    out.obs<std::int64_t>()[0] = start_;
    out.obs<std::int64_t>()[1] = count_;
  }
  std::int64_t length_;
  std::int64_t start_ = 0, count_ = 0, total_ = 0;
  bool throw_at_reset_ = false;
  bool throw_at_observe_ = false;
};

// Waits until a test opens a gate; tests/support/gates.py has the other side.
void wait_at_gate(int number) {
  const std::string gate = "/tmp/gate-" + std::to_string(number);
  std::ofstream(gate + "-reached").flush();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!std::filesystem::exists(gate + "-open") && std::filesystem::exists(gate + "-reached")) {
    if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("nobody opened the gate");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// Sleeps as many milliseconds as its action says; a negative one names the gate at which it waits, 7,777 throws.
class Sleepy {
 public:
  static void spec(const Config&, Spec& spec) {
    spec.observation(envfleet::box<std::int32_t>({}));
    spec.action(envfleet::box<float>({}, -16777215, 10000));
  }
  void reset(Rng&, Out& out) {
    count_ = 0;
    *out.obs<std::int32_t>() = count_;
  }
  void step(const float* milliseconds, Out& out) {
    if (*milliseconds < 0) {
      wait_at_gate(static_cast<int>(-*milliseconds));
    } else if (*milliseconds == 7777) {
      throw std::runtime_error("joint 3 exploded");
    } else {
      std::this_thread::sleep_for(std::chrono::duration<float, std::milli>(*milliseconds));
    }
    *out.obs<std::int32_t>() = ++count_;
  }

 private:
  std::int32_t count_ = 0;
};

// Its next reset waits at the gate that a negative action names. Others take a while too: resets that were quick so
// far are run by the caller itself, timeout or not.
class SlowReset : public Sleepy {
 public:
  void reset(Rng& rng, Out& out) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (const int gate = std::exchange(gate_, 0)) wait_at_gate(gate);
    Sleepy::reset(rng, out);
  }
  void step(const float* action, Out& out) {
    gate_ = *action < 0 ? static_cast<int>(-*action) : 0;
    const float milliseconds = std::max(*action, 0.0F);
    Sleepy::step(&milliseconds, out);
  }

 private:
  int gate_ = 0;
};

// Takes 600 ms to be observed.
class SlowObserve : public Sleepy {
 public:
  void reset(Rng& rng, Out& out) {
    Sleepy::reset(rng, out);
    count_ = 0;
  }
  void step(const float* milliseconds, Out& out) {
    Sleepy::step(milliseconds, out);
    count_ = *out.obs<std::int32_t>();
  }
  void observe(Out& out) {
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    *out.obs<std::int32_t>() = count_;
  }

 private:
  std::int32_t count_ = 0;
};

// Does everything at once, except that the method that its fields name waits at a gate. A negative action throws, and the
// constructor then waits.
class Waiting {
 public:
  enum Method { kNone, kReset, kStep, kObserve, kSave, kLoad, kRender, kFieldsChanged };

  static void spec(const Config&, Spec& spec) {
    spec.observation(envfleet::box<std::int32_t>({}));
    spec.action(envfleet::box<float>({}, -16777215, 0));
  }
  explicit Waiting(const Config&) {
    if (const int gate = gate_of_constructor.exchange(0)) wait_at_gate(gate);
  }
  void reset(Rng&, Out& out) {
    wait_in(kReset);
    count_ = 0;
    *out.obs<std::int32_t>() = count_;
  }
  void step(const float* action, Out& out) {
    if (*action < 0) {
      gate_of_constructor = static_cast<int>(-*action);
      throw std::runtime_error("the device is gone");
    }
    wait_in(kStep);
    *out.obs<std::int32_t>() = ++count_;
  }
  void observe(Out& out) {
    wait_in(kObserve);
    *out.obs<std::int32_t>() = count_;
  }
  void render(envfleet::Frame& frame) {
    wait_in(kRender);
    frame.resize(2, 2);
  }
  void save(envfleet::StateWriter& writer) {
    wait_in(kSave);
    writer.put(count_);
  }
  void load(envfleet::StateReader& reader) {
    wait_in(kLoad);
    count_ = reader.get<std::int32_t>();
  }
  template <class Visitor>
  void fields(Visitor& visit) {
    visit("method", method_);
    visit("gate", gate_);
  }
  void fields_changed() { wait_in(kFieldsChanged); }

 private:
  void wait_in(Method method) {
    if (method_ == method && gate_ != 0) wait_at_gate(std::exchange(gate_, 0));
  }

  static inline std::atomic<int> gate_of_constructor = 0;
  std::int32_t method_ = kNone, gate_ = 0, count_ = 0;
};

// Every kind of array in a Dict observation; skips elements on purpose now and then, which must read as zero.
class Sink {
 public:
  static envfleet::Params params() {
    static const double weights[] = {0.5, 0.25};
    return {{"size", 3, "elements of each array"},
            {"scale", 1.0, "multiplies the reward"},
            {"loud", false, "adds 100 to the reward"},
            {"label", "plain", "a text"},
            {"weights", weights, "a list of numbers"}};
  }
  static void spec(const Config& config, Spec& spec) {
    const std::int64_t size = config.integer("size");
    if (size < 1) throw std::invalid_argument("size expected a positive number, got " + std::to_string(size));
    spec.observation("zulu", envfleet::box<std::uint8_t>({size, 2}, 0, 255));
    spec.observation("alpha", envfleet::box<double>({size}));
    spec.observation("mike", envfleet::discrete(1000, -5));
    spec.observation("flags", envfleet::multi_binary(size));
    spec.observation("small", envfleet::box<std::int16_t>({1}, -7, 7));
    spec.action(envfleet::multi_discrete({3, 4}));
    spec.info("draw", envfleet::scalar<double>());
    spec.max_episode_steps(7);
  }
  explicit Sink(const Config& config)
      : size_(config.integer("size")), scale_(config.real("scale")), bonus_(config.flag("loud") ? 100 : 0) {
    for (double weight : config.reals("weights")) bonus_ += weight;
    bonus_ += static_cast<double>(config.text("label").size());
  }
  void reset(Rng& rng, Out& out) {
    draw_ = rng.normal();
    count_ = 0;
    write(out);
  }
  void step(const std::int32_t* action, Rng& rng, Out& out) {
    draw_ = rng.normal();
    ++count_;
    out.reward = scale_ * (action[0] * 10 + action[1]) + bonus_;
    write(out);
  }
  template <class Visitor>
  void fields(Visitor& visit) {
    visit("draw", draw_);
    visit("count", count_);
  }

 private:
  void write(Out& out) {
    for (std::int64_t i = 0; i < size_; ++i) {
      if (count_ % 2 == 0) out.obs<std::uint8_t>(0)[2 * i] = static_cast<std::uint8_t>(count_ + i);
      out.obs<double>(1)[i] = draw_ * static_cast<double>(i);
      out.obs<std::int8_t>(3)[i] = static_cast<std::int8_t>((count_ + i) % 2);
    }
    *out.obs<std::int64_t>(2) = count_ - 5;
    *out.obs<std::int16_t>(4) = static_cast<std::int16_t>(-count_);
    *out.info<double>(0) = draw_;
  }
  std::int64_t size_;
  double scale_, bonus_;
  double draw_ = 0;
  std::int32_t count_ = 0;
};

// Takes MultiBinary actions, draws itself, and saves opaque bytes.
class Lamp {
 public:
  static void spec(const Config&, Spec& spec) {
    spec.observation_member(envfleet::discrete(2));
    spec.observation_member(envfleet::box<float>({2}, 0, 1));
    spec.action(envfleet::multi_binary(2));
  }
  void reset(Rng& rng, Out& out) {
    lit_ = static_cast<std::int8_t>(rng.integers(0, 2));
    write(out);
  }
  void step(const std::int8_t* action, Out& out) {
    lit_ = action[0] ^ action[1];
    out.truncated = action[0] == 1 && action[1] == 1;
    write(out);
  }
  void render(envfleet::Frame& frame) { frame.resize(4, 6, lit_ != 0 ? 255 : 0); }
  void save(envfleet::StateWriter& writer) { writer.put(lit_); }
  void load(envfleet::StateReader& reader) { lit_ = reader.get<std::int8_t>(); }

 private:
  void write(Out& out) {
    *out.obs<std::int64_t>(0) = lit_;
    out.obs<float>(1)[lit_] = 1.0f;
  }
  std::int8_t lit_ = 0;
};

// Counts its steps; the action says which number is not finite.
class Diverging {
 public:
  enum Action { kStep, kNanInPos, kInfReward, kNanReward, kEnd, kNanAtEnd, kInfAtNextReset, kNumActions };

  static void spec(const Config&, Spec& spec) {
    spec.observation("joint", envfleet::box<float>({4}));
    spec.observation("pos", envfleet::box<double>({2, 3}));
    spec.action(envfleet::discrete(kNumActions));
  }
  void reset(Rng&, Out& out) {
    count_ = 0;
    write(out);
    if (inf_at_reset_) out.obs<float>(0)[1] = -std::numeric_limits<float>::infinity();
    inf_at_reset_ = false;
  }
  void step(int action, Out& out) {
    ++count_;
    write(out);
    out.reward = count_;
    out.terminated = action == kEnd || action == kNanAtEnd;
    inf_at_reset_ |= action == kInfAtNextReset;
    if (action == kNanInPos || action == kNanAtEnd) out.obs<double>(1)[5] = std::numeric_limits<double>::quiet_NaN();
    if (action == kInfReward) out.reward = std::numeric_limits<double>::infinity();
    if (action == kNanReward) out.reward = std::numeric_limits<double>::quiet_NaN();
  }

 private:
  void write(Out& out) const {
    out.obs<float>(0)[0] = static_cast<float>(count_);
    out.obs<double>(1)[0] = count_;
  }
  int count_ = 0;
  bool inf_at_reset_ = false;
};

// Writes a float64 where it declared float32.
class Confused {
 public:
  static void spec(const Config&, Spec& spec) {
    spec.observation(envfleet::box<float>({1}));
    spec.action(envfleet::discrete(2));
  }
  void reset(Rng&, Out& out) { *out.obs<double>() = 1; }
  void step(int, Out&) {}
};

// Raises when half of its observation is written, of a space without zeros.
class Halfway {
 public:
  enum Action { kStep, kThrow, kEnd, kThrowAtNextReset, kNumActions };

  static void spec(const Config&, Spec& spec) {
    spec.observation("first", envfleet::box<double>({3}, 100, 200));
    spec.observation("second", envfleet::box<double>({2}, 100, 200));
    spec.action(envfleet::discrete(kNumActions));
  }
  void reset(Rng& rng, Out& out) { write(rng, out, throw_at_reset_); }
  void step(int action, Rng& rng, Out& out) {
    if (action == kThrowAtNextReset) throw_at_reset_ = true;
    write(rng, out, action == kThrow);
    out.reward = 1.0;
    out.terminated = action == kEnd;
  }
  template <class Visitor>
  void fields(Visitor& visit) {
    visit("throw_at_reset", throw_at_reset_);
  }

 private:
  static void write(Rng& rng, Out& out, bool throws) {
    for (int i = 0; i < 3; ++i) out.obs<double>(0)[i] = rng.uniform(100, 200);
    if (throws) throw std::runtime_error("lost on the way");
    for (int i = 0; i < 2; ++i) out.obs<double>(1)[i] = rng.uniform(100, 200);
  }
  bool throw_at_reset_ = false;
};

}  // namespace

ENVFLEET_ENV("Faulty-v0", Faulty)
ENVFLEET_ENV("Halfway-v0", Halfway)
ENVFLEET_ENV("Sleepy-v0", Sleepy)
ENVFLEET_ENV("SlowReset-v0", SlowReset)
ENVFLEET_ENV("SlowObserve-v0", SlowObserve)
ENVFLEET_ENV("Waiting-v0", Waiting)
ENVFLEET_ENV("Sink-v0", Sink)
ENVFLEET_ENV("Lamp-v0", Lamp)
ENVFLEET_ENV("Confused-v0", Confused)
ENVFLEET_ENV("Diverging-v0", Diverging)
