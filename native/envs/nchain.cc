// NChain: gym's NChain-v0 (Strens 2000), which Gymnasium no longer has.
//
// Forward (0) moves along the chain and pays only at its end, again and again; backward (1) returns to the start
// for a small reward. With probability slip the other of the two happens.
#include <cstdint>
#include <stdexcept>
#include <string>

#include "envfleet/env.h"

namespace {

using envfleet::Config;
using envfleet::Out;
using envfleet::Rng;
using envfleet::Spec;

class NChain {
 public:
  static constexpr bool writes_every_element = true;

  static envfleet::Params params() {
    return {{"n", 5, "the length of the chain"},
            {"slip", 0.2, "the probability that the other action is taken"},
            {"small", 2.0, "the reward of going back"},
            {"large", 10.0, "the reward of going forward at the end"}};
  }

  static void spec(const Config& config, Spec& spec) {
    const std::int64_t length = config.integer("n");
    if (length < 1) throw std::invalid_argument("NChain expected n >= 1, got " + std::to_string(length));
    spec.observation(envfleet::discrete(length));
    spec.action(envfleet::discrete(2));
    spec.max_episode_steps(1000);
  }

  explicit NChain(const Config& config)
      : length_(config.integer("n")),
        slip_(config.real("slip")),
        small_(config.real("small")),
        large_(config.real("large")) {}

  void reset(Rng&, Out& out) {
    state_ = 0;
    observe(out);
  }

  void step(int action, Rng& rng, Out& out) {
    const bool slips = rng.random() < slip_;
    if ((action != 0) != slips) {
      out.reward = small_;
      state_ = 0;
    } else if (state_ < length_ - 1) {
      ++state_;
    } else {
      out.reward = large_;
    }
    observe(out);
  }

  void observe(Out& out) { *out.obs<std::int64_t>() = state_; }

  template <class Visitor>
  void fields(Visitor& visit) {
    visit("state", state_);
    visit("slip", slip_);
    visit("small", small_);
    visit("large", large_);
  }

 private:
  std::int64_t length_;
  double slip_, small_, large_;
  std::int64_t state_ = 0;
};

}  // namespace

ENVFLEET_ENV("NChain-v0", NChain)
