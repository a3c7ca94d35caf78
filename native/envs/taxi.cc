// Taxi (Dietterich): Gymnasium's Taxi-v4 and Taxi-v3.
//
// Gymnasium 1.3 replaced v3 by v4, which mended the rainy and the fickle variant. Both are
// off by default, and without them v3 and v4 are the same game from the same seed; so
// Taxi-v3 is v4 here, and is_rainy and fickle_passenger are the mended ones under either id.
//
// Transitions are computed, not looked up: 500 states x 6 actions are a few comparisons.
#include <algorithm>
#include <array>
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

enum Action { kSouth, kNorth, kEast, kWest, kPickUp, kDropOff };

constexpr int kSize = 5;
constexpr int kNumStates = 500;
constexpr int kInTaxi = 4;

// What lies to the right of each cell: a passage (:) or a wall (|).
constexpr const char* kMap[kSize] = {
    "R: | : :G|",  //
    " : | : : |",  //
    " : : : : |",  //
    " | : | : |",  //
    "Y| : |B: |",
};

struct Cell {
  int row, column;
  bool operator==(const Cell&) const = default;
};

// Where passengers wait and go: red, green, yellow, blue.
constexpr Cell kStands[4] = {{0, 0}, {0, 4}, {4, 0}, {4, 3}};

// The number of the stand at a cell; -1: none.
int stand_at(Cell cell) {
  for (int stand = 0; stand < 4; ++stand) {
    if (kStands[stand] == cell) return stand;
  }
  return -1;
}

bool is_open(Cell cell, int heading) {
  if (heading == kSouth) return cell.row < kSize - 1;
  if (heading == kNorth) return cell.row > 0;
  if (heading == kEast) return kMap[cell.row][2 * cell.column + 1] == ':';
  return cell.column > 0 && kMap[cell.row][2 * cell.column - 1] == ':';
}

Cell moved(Cell cell, int heading) {
  if (!is_open(cell, heading)) return cell;
  if (heading == kSouth) return {cell.row + 1, cell.column};
  if (heading == kNorth) return {cell.row - 1, cell.column};
  if (heading == kEast) return {cell.row, cell.column + 1};
  return {cell.row, cell.column - 1};
}

struct Situation {
  Cell taxi;
  int passenger;  // a stand, or kInTaxi
  int destination;

  static Situation decode(std::int32_t s) { return {{s / 100, s / 20 % kSize}, s / 4 % 5, s % 4}; }
  std::int32_t encode() const { return ((taxi.row * kSize + taxi.column) * 5 + passenger) * 4 + destination; }
};

// The 300 states in which the passenger waits elsewhere than at the destination, all alike
// likely, with numpy's running sum of their probabilities: its rounding decides the draws
// that fall on a border.
struct InitialStates {
  std::array<double, 300> cumulative{};
  std::array<std::int16_t, 300> states{};

  constexpr InitialStates() {
    int count = 0;
    double sum = 0.0;
    for (int s = 0; s < kNumStates; ++s) {
      const int passenger = s / 4 % 5;
      if (passenger == kInTaxi || passenger == s % 4) continue;
      sum += 1.0 / 300;
      cumulative[count] = sum;
      states[count] = static_cast<std::int16_t>(s);
      ++count;
    }
  }

  std::int32_t pick(double draw) const {
    const auto found = std::upper_bound(cumulative.begin(), cumulative.end(), draw);
    return found == cumulative.end() ? 0 : states[found - cumulative.begin()];  // 0: see categorical.h
  }
};

constexpr InitialStates kInitialStates;

class Taxi {
 public:
  static constexpr bool writes_every_element = true;

  static envfleet::Params params() {
    return {{"is_rainy", false, "the taxi drifts sideways at times"},
            {"fickle_passenger", false, "the passenger may choose another destination after the first pick-up"},
            {"rainy_probability", 0.8, "of moving as intended when it rains; the rest is shared by the two sides"},
            {"fickle_probability", 0.3, "that a fickle passenger changes the destination in an episode"}};
  }

  static void spec(const Config&, Spec& spec) {
    spec.observation(envfleet::discrete(kNumStates));
    spec.action(envfleet::discrete(6));
    spec.info("prob", envfleet::scalar<double>());
    spec.info("action_mask", envfleet::box<std::int8_t>({6}, 0, 1));
    spec.max_episode_steps(200).reward_threshold(8.0);
  }

  explicit Taxi(const Config& config)
      : rainy_probability_(config.real("rainy_probability")),
        fickle_probability_(config.real("fickle_probability")),
        is_rainy_(config.flag("is_rainy")),
        fickle_passenger_(config.flag("fickle_passenger")) {}

  void reset(Rng& rng, Out& out) {
    s_ = kInitialStates.pick(rng.random());
    lastaction_ = -1;
    taxi_orientation_ = 0;
    // Drawn for a fickle passenger only, as in Gymnasium.
    fickle_step_ = fickle_passenger_ && rng.random() < fickle_probability_;
    write(out, 1.0);
  }

  void step(int action, Rng& rng, Out& out) {
    check_state();
    const Situation before = Situation::decode(s_);
    Situation after = before;
    double probability = 1.0;
    const double draw = rng.random();  // also where there is one outcome only
    out.reward = -1.0;
    if (action == kPickUp) {
      if (before.passenger != kInTaxi && before.taxi == kStands[before.passenger]) {
        after.passenger = kInTaxi;
      } else {
        out.reward = -10.0;
      }
    } else if (action == kDropOff) {
      drop_off(after, out);
    } else if (is_rainy_) {
      probability = drift(action, draw, after.taxi);
    } else {
      after.taxi = moved(before.taxi, action);
    }
    if (fickle_step_ && before.passenger == kInTaxi && after.taxi != before.taxi) {
      fickle_step_ = false;
      const int other = static_cast<int>(rng.integers(0, 3));
      after.destination = other < before.destination ? other : other + 1;
    }
    s_ = after.encode();
    lastaction_ = action;
    if (action <= kWest) taxi_orientation_ = action;
    write(out, probability);
  }

  void observe(Out& out) { *out.obs<std::int64_t>() = s_; }

  template <class Visitor>
  void fields(Visitor& visit) {
    visit("s", s_);
    visit("lastaction", lastaction_);
    visit("taxi_orientation", taxi_orientation_);
    visit("fickle_step", fickle_step_);
  }

 private:
  static void drop_off(Situation& now, Out& out) {
    const int stand = stand_at(now.taxi);
    if (now.passenger != kInTaxi || stand < 0) {
      out.reward = -10.0;
      return;
    }
    now.passenger = stand;
    if (stand == now.destination) {
      out.reward = 20.0;
      out.terminated = true;
    }
  }

  // Moves the taxi in the rain and returns the probability of what happened. A blocked taxi
  // does not drift, yet which of the three outcomes it "took" still shows in the probability.
  double drift(int heading, double draw, Cell& taxi) const {
    constexpr int sides[4][2] = {{kEast, kWest}, {kWest, kEast}, {kNorth, kSouth}, {kSouth, kNorth}};  // left, right
    const double sideways = (1.0 - rainy_probability_) / 2.0;
    const int outcome = envfleet::pick_outcome(draw, {rainy_probability_, sideways, sideways});
    if (is_open(taxi, heading)) taxi = moved(taxi, outcome == 0 ? heading : sides[heading][outcome - 1]);
    return outcome == 0 ? rainy_probability_ : sideways;
  }

  void write(Out& out, double probability) {
    observe(out);
    *out.info<double>(0) = probability;
    const Situation now = Situation::decode(s_);
    const int stand = stand_at(now.taxi);
    std::int8_t* mask = out.info<std::int8_t>(1);
    for (int heading = kSouth; heading <= kWest; ++heading) mask[heading] = is_open(now.taxi, heading);
    mask[kPickUp] = stand >= 0 && now.passenger == stand;
    mask[kDropOff] = stand >= 0 && now.passenger == kInTaxi;
  }

  // A state that was set from outside must not be looked up past the map.
  void check_state() const {
    if (s_ < 0 || s_ >= kNumStates) [[unlikely]] {
      throw std::out_of_range("Taxi expected s in [0, 500), got " + std::to_string(s_));
    }
  }

  double rainy_probability_;
  double fickle_probability_;
  std::int32_t s_ = 0;
  std::int32_t lastaction_ = -1;       // -1: none yet, Gymnasium's None
  std::int32_t taxi_orientation_ = 0;  // of the picture: the last move of the episode
  bool is_rainy_;
  bool fickle_passenger_;
  bool fickle_step_ = false;  // the change of mind is still to come
};

}  // namespace

ENVFLEET_ENV("Taxi-v3", Taxi)
ENVFLEET_ENV("Taxi-v4", Taxi)
