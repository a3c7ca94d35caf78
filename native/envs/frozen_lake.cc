// FrozenLake: Gymnasium's FrozenLake-v1 and FrozenLake8x8-v1.
//
// The map is shared by all envs that were given the same one; an env holds its position and
// a pointer. Transitions are computed from the map, not tabulated.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "envfleet/env.h"
#include "envs/categorical.h"

namespace {

using envfleet::Config;
using envfleet::Out;
using envfleet::Rng;
using envfleet::Spec;

constexpr const char* kMap4x4 = "SFFF\nFHFH\nFFFH\nHFFG";
constexpr const char* kMap8x8 = "SFFFFFFF\nFFFFFFFF\nFFFHFFFF\nFFFFFHFF\nFFFHFFFF\nFHHFFFHF\nFHFFHFHF\nFFFHFFFG";

constexpr double kRewards[3] = {1, 0, 0};

struct Lake {
  int rows = 0, columns = 0;
  std::string tiles;                 // row by row, of S (start), F (frozen), H (hole), G (goal)
  std::vector<std::int32_t> starts;  // the S tiles

  // Headings are 0 left, 1 down, 2 right, 3 up; the edge of the lake stops a move.
  std::int32_t moved(std::int32_t from, int heading) const {
    int row = from / columns;
    int column = from % columns;
    if (heading == 0) column = std::max(column - 1, 0);
    if (heading == 1) row = std::min(row + 1, rows - 1);
    if (heading == 2) column = std::min(column + 1, columns - 1);
    if (heading == 3) row = std::max(row - 1, 0);
    return row * columns + column;
  }

  // numpy's running sum of 1/n at each start: past its rounded end a draw falls on tile 0.
  std::int32_t pick_start(double draw) const {
    const double probability = 1.0 / static_cast<double>(starts.size());
    double cumulative = 0.0;
    for (const std::int32_t start : starts) {
      cumulative += probability;
      if (cumulative > draw) return start;
    }
    return 0;
  }
};

Lake parse(std::string_view desc) {
  Lake lake;
  for (std::string_view rest = desc; !rest.empty();) {
    const std::string_view row = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(row.size() + 1, rest.size()));
    const int width = static_cast<int>(row.size());
    if (lake.rows == 0) lake.columns = width;
    if (width == 0 || width != lake.columns) {
      throw std::invalid_argument("FrozenLake's desc expected rows of one length, got a row of " +
                                  std::to_string(lake.columns) + " and row " + std::to_string(lake.rows) + " of " +
                                  std::to_string(width) + " tiles");
    }
    lake.tiles += row;
    ++lake.rows;
  }
  for (std::size_t tile = 0; tile < lake.tiles.size(); ++tile) {
    const char letter = lake.tiles[tile];
    if (std::string_view("SFHG").find(letter) == std::string_view::npos) {
      throw std::invalid_argument(std::string("FrozenLake's desc expected tiles S, F, H or G, got '") + letter +
                                  "' in row " + std::to_string(tile / lake.columns));
    }
    if (letter == 'S') lake.starts.push_back(static_cast<std::int32_t>(tile));
  }
  if (lake.starts.empty()) throw std::invalid_argument("FrozenLake's desc expected a start tile S, got none");
  return lake;
}

// Hands out one Lake for each map, alive as long as an env uses it.
// Thread safety: any thread may call it; fleets may be built side by side.
std::shared_ptr<const Lake> shared_lake(const std::string& desc) {
  struct Known {
    std::mutex mutex;
    std::map<std::string, std::weak_ptr<const Lake>> lakes;
  };
  // Never destroyed: a pool that lives until the process ends returns its lakes after statics are gone.
  static Known& known = *new Known;
  const std::lock_guard lock(known.mutex);
  std::weak_ptr<const Lake>& slot = known.lakes[desc];
  if (std::shared_ptr<const Lake> lake = slot.lock()) return lake;
  const auto forget = [desc](const Lake* lake) {
    delete lake;
    const std::lock_guard lock(known.mutex);
    const auto found = known.lakes.find(desc);
    // Another thread may have put a new lake here since the last env of this one went.
    if (found != known.lakes.end() && found->second.expired()) known.lakes.erase(found);
  };
  try {
    std::shared_ptr<const Lake> lake(new Lake(parse(desc)), forget);
    slot = lake;
    return lake;
  } catch (...) {
    known.lakes.erase(desc);
    throw;
  }
}

std::shared_ptr<const Lake> lake_of(const Config& config) {
  const std::string desc = config.text("desc");
  if (!desc.empty()) return shared_lake(desc);
  const std::string name = config.text("map_name");
  if (name == "4x4") return shared_lake(kMap4x4);
  if (name == "8x8") return shared_lake(kMap8x8);
  throw std::invalid_argument("FrozenLake's map_name expected 4x4 or 8x8, got " + name +
                              "; pass desc for a map of your own");
}

class FrozenLake {
 public:
  static constexpr bool writes_every_element = true;

  static envfleet::Params params() { return params_with_map("4x4"); }

  static void spec(const Config& config, Spec& spec) { describe(config, spec, 100, 0.70); }

  explicit FrozenLake(const Config& config)
      : lake_(lake_of(config)), success_rate_(config.real("success_rate")), is_slippery_(config.flag("is_slippery")) {
    const std::vector<double> rewards = config.reals("reward_schedule");
    if (rewards.size() != 3) {
      throw std::invalid_argument("FrozenLake's reward_schedule expected 3 rewards (goal, hole, frozen), got " +
                                  std::to_string(rewards.size()));
    }
    std::copy(rewards.begin(), rewards.end(), rewards_);
  }

  void reset(Rng& rng, Out& out) {
    s_ = lake_->pick_start(rng.random());
    lastaction_ = -1;
    *out.info<double>() = 1.0;
    observe(out);
  }

  void step(int action, Rng& rng, Out& out) {
    const double draw = rng.random();  // also where there is one outcome only
    lastaction_ = action;
    *out.info<double>() = 1.0;
    // A hole and the goal hold what enters them, without a reward.
    if (is_end(tile())) {
      out.terminated = true;
      observe(out);
      return;
    }
    int heading = action;
    if (is_slippery_) {
      const double fail_rate = (1.0 - success_rate_) / 2.0;
      const int outcome = envfleet::pick_outcome(draw, {fail_rate, success_rate_, fail_rate});
      heading = (action + 3 + outcome) % 4;
      *out.info<double>() = outcome == 1 ? success_rate_ : fail_rate;
    }
    s_ = lake_->moved(s_, heading);
    const char reached = tile();
    out.terminated = is_end(reached);
    out.reward = rewards_[reached == 'G' ? 0 : reached == 'H' ? 1 : 2];
    observe(out);
  }

  void observe(Out& out) { *out.obs<std::int64_t>() = s_; }

  template <class Visitor>
  void fields(Visitor& visit) {
    visit("s", s_);
    visit("lastaction", lastaction_);
  }

 protected:
  static envfleet::Params params_with_map(const char* map_name) {
    return {{"desc", "", "the map: rows of S, F, H and G joined by newlines; empty: map_name's"},
            {"map_name", map_name, "4x4 or 8x8"},
            {"is_slippery", true, "moves may go to either side of what was intended"},
            {"success_rate", 1.0 / 3.0, "of moving as intended on slippery ice; the rest is shared by the two sides"},
            {"reward_schedule", kRewards, "the rewards for reaching the goal, a hole, a frozen tile"}};
  }

  static void describe(const Config& config, Spec& spec, int max_episode_steps, double reward_threshold) {
    spec.observation(envfleet::discrete(static_cast<std::int64_t>(lake_of(config)->tiles.size())));
    spec.action(envfleet::discrete(4));
    spec.info("prob", envfleet::scalar<double>());
    spec.max_episode_steps(max_episode_steps).reward_threshold(reward_threshold);
  }

 private:
  static bool is_end(char tile) { return tile == 'G' || tile == 'H'; }

  // Checked: a state that was set from outside must not be looked up past the map.
  char tile() const {
    if (s_ < 0 || static_cast<std::size_t>(s_) >= lake_->tiles.size()) [[unlikely]] {
      throw std::out_of_range("FrozenLake expected s in [0, " + std::to_string(lake_->tiles.size()) + "), got " +
                              std::to_string(s_));
    }
    return lake_->tiles[static_cast<std::size_t>(s_)];
  }

  std::shared_ptr<const Lake> lake_;
  double success_rate_;
  double rewards_[3];
  std::int32_t s_ = 0;
  std::int32_t lastaction_ = -1;  // -1: none yet, Gymnasium's None
  bool is_slippery_;
};

class FrozenLake8x8 : public FrozenLake {
 public:
  using FrozenLake::FrozenLake;
  static envfleet::Params params() { return params_with_map("8x8"); }
  static void spec(const Config& config, Spec& spec) { describe(config, spec, 200, 0.85); }
};

}  // namespace

ENVFLEET_ENV("FrozenLake-v1", FrozenLake)
ENVFLEET_ENV("FrozenLake8x8-v1", FrozenLake8x8)
