// CliffWalking (Sutton and Barto, example 6.6): Gymnasium's CliffWalking-v1 and
// CliffWalkingSlippery-v1.
//
// CliffWalking-v0 has the same rules as v1: Gymnasium's version history names the slippery
// variant as the only change, and by default it is off.
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "envfleet/env.h"
#include "envs/categorical.h"

namespace {

using envfleet::Config;
using envfleet::Out;
using envfleet::Rng;
using envfleet::Spec;

constexpr int kRows = 4;
constexpr int kColumns = 12;
constexpr std::int32_t kStart = (kRows - 1) * kColumns;
constexpr std::int32_t kGoal = kRows * kColumns - 1;

class CliffWalking {
 public:
  static constexpr bool writes_every_element = true;

  static envfleet::Params params() { return {is_slippery(false)}; }

  static void spec(const Config&, Spec& spec) {
    spec.observation(envfleet::discrete(kRows * kColumns));
    spec.action(envfleet::discrete(4));
    spec.info("prob", envfleet::scalar<double>());
  }

  explicit CliffWalking(const Config& config) : is_slippery_(config.flag("is_slippery")) {}

  void reset(Rng& rng, Out& out) {
    // The start is fixed, but Gymnasium draws it: without this the stream runs one behind.
    rng.random();
    s_ = kStart;
    lastaction_ = -1;
    *out.info<double>() = 1.0;
    observe(out);
  }

  void step(int action, Rng& rng, Out& out) {
    // set_attr() may have put anything here.
    if (s_ < 0 || s_ > kGoal) throw std::out_of_range("s expected a tile of the map, got " + std::to_string(s_));
    const double draw = rng.random();  // also where there is one outcome only
    int heading = action;
    double probability = 1.0;
    if (is_slippery_) {
      probability = 1.0 / 3;
      // Outcomes are the turn to the left, straight on, the turn to the right.
      heading = (action + 3 + envfleet::pick_outcome(draw, {probability, probability, probability})) % 4;
    }
    const std::int32_t reached = moved(heading);
    const bool fell = reached > kStart && reached < kGoal;
    s_ = fell ? kStart : reached;
    lastaction_ = action;
    out.reward = fell ? -100.0 : -1.0;
    out.terminated = s_ == kGoal;
    *out.info<double>() = probability;
    observe(out);
  }

  void observe(Out& out) { *out.obs<std::int64_t>() = s_; }

  template <class Visitor>
  void fields(Visitor& visit) {
    visit("s", s_);
    visit("lastaction", lastaction_);
  }

 protected:
  static envfleet::Param is_slippery(bool by_default) {
    return {"is_slippery", by_default, "a third of the moves go straight on, a third to either side"};
  }

 private:
  // Headings are 0 up, 1 right, 2 down, 3 left; the edge of the grid stops a move.
  std::int32_t moved(int heading) const {
    int row = s_ / kColumns;
    int column = s_ % kColumns;
    if (heading == 0) row = std::max(row - 1, 0);
    if (heading == 1) column = std::min(column + 1, kColumns - 1);
    if (heading == 2) row = std::min(row + 1, kRows - 1);
    if (heading == 3) column = std::max(column - 1, 0);
    return row * kColumns + column;
  }

  bool is_slippery_;
  std::int32_t s_ = kStart;
  std::int32_t lastaction_ = -1;  // -1: none yet, Gymnasium's None
};

class CliffWalkingSlippery : public CliffWalking {
 public:
  using CliffWalking::CliffWalking;
  static envfleet::Params params() { return {is_slippery(true)}; }
};

}  // namespace

ENVFLEET_ENV("CliffWalking-v0", CliffWalking)
ENVFLEET_ENV("CliffWalking-v1", CliffWalking)
ENVFLEET_ENV("CliffWalkingSlippery-v1", CliffWalkingSlippery)
