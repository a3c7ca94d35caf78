// Uneven-v0: an env for benchmarks with uniformly distributed step times of 10 to 1000 us.
//
// wait=False uses the CPU for that time, like a simulator. The time is measured by the wall clock, so use no more
// threads than cores: otherwise two threads spend the same microsecond.
// wait=True sleeps instead, like an env that waits for a device or a socket. It also shows how a pool behaves on a
// machine with one core per env.
#include <chrono>
#include <thread>

#include "envfleet/env.h"

namespace {

class Uneven {
 public:
  static constexpr bool writes_every_element = true;

  static envfleet::Params params() {
    return {{"min_us", 10.0, "the shortest step"},
            {"max_us", 1000.0, "the longest step"},
            {"wait", false, "sleep instead of using the CPU"}};
  }

  static void spec(const envfleet::Config&, envfleet::Spec& spec) {
    spec.observation(envfleet::box<float>({1}, 0.0, envfleet::infinity));
    spec.action(envfleet::discrete(2));
  }

  explicit Uneven(const envfleet::Config& config)
      : min_us_(config.real("min_us")), max_us_(config.real("max_us")), wait_(config.flag("wait")) {}

  void reset(envfleet::Rng&, envfleet::Out& out) { *out.obs<float>() = 0; }

  void step(int, envfleet::Rng& rng, envfleet::Out& out) {
    using Clock = std::chrono::steady_clock;
    const double duration_us = rng.uniform(min_us_, max_us_);
    const auto end =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::micro>(duration_us));
    if (wait_) {
      std::this_thread::sleep_until(end);
    } else {
      while (Clock::now() < end) {
      }
    }
    *out.obs<float>() = static_cast<float>(duration_us);
  }

 private:
  double min_us_, max_us_;
  bool wait_;
};

}  // namespace

ENVFLEET_ENV("Uneven-v0", Uneven)
