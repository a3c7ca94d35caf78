// MiniGrid: one env for all the ids of the minigrid package but WFC's and BabyAI's. The parameter `task` names the
// package's class, the others are its arguments; families/minigrid.py has the ids and translates.
//
// The mission is a number here, and a text in Python.
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "envfleet/env.h"
#include "envs/minigrid/picture.h"
#include "envs/minigrid/task.h"
#include "envs/minigrid/view.h"

namespace {

using envfleet::Config;
using envfleet::Out;
using envfleet::Rng;
using envfleet::Spec;
using minigrid::Point;
using minigrid::Settings;
using minigrid::Task;
using minigrid::World;

enum class Observation { kPartial, kFull, kRgb, kRgbPartial };

Observation observation_of(const Config& config) {
  const std::string name = config.text("observation");
  if (name == "partial") return Observation::kPartial;
  if (name == "full") return Observation::kFull;
  if (name == "rgb") return Observation::kRgb;
  if (name == "rgb_partial") return Observation::kRgbPartial;
  throw std::invalid_argument("observation expected 'partial', 'full', 'rgb' or 'rgb_partial', got '" + name + "'");
}

int integer_of(const Config& config, const char* name, int low, int high) {
  const std::int64_t value = config.integer(name);
  minigrid::check_range(name, value, low, high);
  return static_cast<int>(value);
}

Point point_of(const Config& config, const char* name) {
  const std::vector<double> values = config.reals(name);
  const auto is_whole = [](double value) {
    return value >= -1 && value <= minigrid::kMaxSize && value == static_cast<int>(value);
  };
  if (values.size() != 2 || !is_whole(values[0]) || !is_whole(values[1])) {
    throw std::invalid_argument(std::string(name) + " expected two whole numbers, x and y");
  }
  return {static_cast<int>(values[0]), static_cast<int>(values[1])};
}

constexpr int kMany = 1'000'000;

Settings settings_of(const Config& config) {
  Settings settings;
  settings.size = integer_of(config, "size", 0, minigrid::kMaxSize);
  settings.width = integer_of(config, "width", 0, minigrid::kMaxSize);
  settings.height = integer_of(config, "height", 0, minigrid::kMaxSize);
  settings.max_steps = integer_of(config, "max_steps", 0, World::kMaxSteps);
  settings.sees_through_walls = config.flag("see_through_walls");
  settings.agent_start = point_of(config, "agent_start_pos");
  settings.agent_start_dir = integer_of(config, "agent_start_dir", 0, 3);
  settings.goal_start = point_of(config, "goal_pos");
  settings.obstacle = config.text("obstacle_type") == "wall" ? minigrid::kWall : minigrid::kLava;
  settings.num_crossings = integer_of(config, "num_crossings", 0, kMany);
  settings.num_obstacles = integer_of(config, "n_obstacles", 0, kMany);
  settings.num_objects = integer_of(config, "numObjs", 0, kMany);
  settings.strip2_row = integer_of(config, "strip2_row", 0, minigrid::kMaxSize);
  settings.min_rooms = integer_of(config, "minNumRooms", 0, kMany);
  settings.max_rooms = integer_of(config, "maxNumRooms", 0, kMany);
  settings.max_room_size = integer_of(config, "maxRoomSize", 0, kMany);
  settings.room_size = integer_of(config, "room_size", 0, kMany);
  settings.num_rows = integer_of(config, "num_rows", 0, kMany);
  const std::string object = config.text("obj_type");
  settings.object_type = object == "key"    ? minigrid::kKey
                         : object == "ball" ? minigrid::kBall
                         : object == "box"  ? minigrid::kBox
                                            : minigrid::kUnseen;
  settings.random_length = config.flag("random_length");
  settings.key_in_box = config.flag("key_in_box");
  settings.blocked = config.flag("blocked");
  settings.agent_room = point_of(config, "agent_room");
  settings.num_quarters = integer_of(config, "num_quarters", 0, kMany);
  settings.num_rooms_visited = integer_of(config, "num_rooms_visited", 0, kMany);
  minigrid::find_task(config.text("task")).complete(settings);
  return settings;
}

int view_size_of(const Config& config) {
  const int size = integer_of(config, "agent_view_size", 3, minigrid::kMaxViewSize);
  if (size % 2 == 0) throw std::invalid_argument("agent_view_size expected an odd number, got " + std::to_string(size));
  return size;
}

class MiniGrid {
 public:
  static constexpr bool writes_every_element = true;

  static envfleet::Params params() {
    static constexpr double kAnywhere[] = {-1, -1};
    static constexpr double kMiddle[] = {1, 1};
    return {{"task", "Empty", "the package's class, without Env"},
            {"observation", "partial", "partial (7 x 7 squares), full, rgb or rgb_partial: the package's wrappers"},
            {"obs_tile_size", 8, "pixels on a side of a square, of an RGB observation"},
            {"mission", "text", "text or code: a number"},
            {"agent_view_size", 7, "squares on a side of the agent's view, odd"},
            {"max_steps", 0, "after which an episode is truncated; 0: the task's own"},
            {"see_through_walls", false, "whether nothing hides what is behind it"},
            {"tile_size", 32, "pixels on a side of a square, of render()"},
            {"highlight", true, "whether render() shows what the agent sees"},
            {"agent_pov", false, "whether render() shows the agent's view alone"},
            {"size", 8, "squares on a side of the grid"},
            {"width", 0, "of the grid in squares"},
            {"height", 0, "of the grid in squares"},
            {"agent_start_pos", kAnywhere, "where the agent starts; -1, -1: anywhere"},
            {"agent_start_dir", 0, "where the agent looks at the start"},
            {"goal_pos", kAnywhere, "where the goal is; -1, -1: anywhere"},
            {"obstacle_type", "lava", "lava or wall"},
            {"num_crossings", 0, "of rivers that cross the way"},
            {"n_obstacles", 0, "of balls that move"},
            {"numObjs", 0, "of objects"},
            {"strip2_row", 0, "where the second strip of lava is"},
            {"minNumRooms", 0, "of rooms in a row"},
            {"maxNumRooms", 0, "of rooms in a row"},
            {"maxRoomSize", 0, "squares on a side of a room"},
            {"room_size", 0, "squares on a side of a room, walls included"},
            {"num_rows", 0, "of rooms"},
            {"obj_type", "ball", "the kind of object to pick up"},
            {"random_length", false, "of the hallway"},
            {"key_in_box", false, "whether keys are hidden in boxes"},
            {"blocked", false, "whether balls block the doors"},
            {"agent_room", kMiddle, "column and row of the agent's room"},
            {"num_quarters", 0, "of the maze"},
            {"num_rooms_visited", 0, "on the way, which the time limit is made for"}};
  }

  static void spec(const Config& config, Spec& spec) {
    const Settings settings = settings_of(config);
    const Task& task = minigrid::find_task(config.text("task"));
    const int view_size = view_size_of(config);
    spec.observation("direction", envfleet::discrete(4));
    spec.observation("image", envfleet::box<std::uint8_t>(image_shape(config, settings, view_size), 0, 255));
    spec.observation("mission", envfleet::discrete(task.num_missions()));
    spec.action(envfleet::discrete(task.num_actions()));
    spec.max_episode_steps(settings.max_steps);
    integer_of(config, "tile_size", 1, minigrid::kMaxTileSize);
  }

  explicit MiniGrid(const Config& config)
      : task_(&minigrid::find_task(config.text("task"))),
        settings_(settings_of(config)),
        view_size_(view_size_of(config)),
        observation_(observation_of(config)),
        obs_tiles_(draws_observation() ? &minigrid::tiles_of(static_cast<int>(config.integer("obs_tile_size"))) : nullptr),
        tile_size_(static_cast<int>(config.integer("tile_size"))),
        is_highlighted_(config.flag("highlight")),
        is_agent_pov_(config.flag("agent_pov")),
        world_(settings_.width, settings_.height, settings_.max_steps, view_size_ - 1) {}

  void reset(Rng& rng, Out& out) {
    world_.clear();
    task_->generate(settings_, world_, rng);
    if (!minigrid::can_enter(world_.get(world_.agent))) {
      throw std::invalid_argument("expected the agent to start on a free square, got (" + std::to_string(world_.agent.x) +
                                  ", " + std::to_string(world_.agent.y) + ")");
    }
    observe(out);
  }

  void step(int action, Rng& rng, Out& out) {
    const minigrid::Outcome outcome = task_->step(world_, action, rng);
    out.reward = outcome.reward;
    out.terminated = outcome.terminated;
    out.truncated = world_.is_out_of_time();
    observe(out);
  }

  void observe(Out& out) {
    *out.obs<std::int64_t>(0) = world_.direction;
    *out.obs<std::int64_t>(2) = world_.mission;
    std::uint8_t* image = out.obs<std::uint8_t>(1);
    switch (observation_) {
      case Observation::kPartial:
        return minigrid::write_view(world_, view_size_, settings_.sees_through_walls, image);
      case Observation::kFull:
        return minigrid::write_grid(world_, image);
      case Observation::kRgb:
        return minigrid::draw_grid(world_, *obs_tiles_, view_size_, settings_.sees_through_walls, is_highlighted_, image);
      case Observation::kRgbPartial:
        return minigrid::draw_view(world_, *obs_tiles_, view_size_, settings_.sees_through_walls, image);
    }
  }

  void render(envfleet::Frame& frame) {
    const minigrid::Tiles& tiles = minigrid::tiles_of(tile_size_);
    if (is_agent_pov_) {
      frame.resize(view_size_ * tile_size_, view_size_ * tile_size_);
      minigrid::draw_view(world_, tiles, view_size_, settings_.sees_through_walls, frame.rgb.data());
    } else {
      frame.resize(world_.height() * tile_size_, world_.width() * tile_size_);
      minigrid::draw_grid(world_, tiles, view_size_, settings_.sees_through_walls, is_highlighted_, frame.rgb.data());
    }
  }

  template <class Visitor>
  void fields(Visitor& visit) {
    visit_point(visit, "agent_pos", world_.agent);
    visit("agent_dir", world_.direction);
    visit("step_count", world_.step_count);
    visit("carrying", world_.carrying);
    visit("mission", world_.mission);
    visit("cells", world_.cells);
    visit_point(visit, "target_pos", world_.target);
    visit_point(visit, "other_pos", world_.other);
    visit("wanted", world_.wanted);
    visit("obstacles", world_.obstacles);
  }

  void fields_changed() {
    world_.check();
    if (world_.mission < 0 || world_.mission >= task_->num_missions()) {
      throw std::invalid_argument("mission expected a number below " + std::to_string(task_->num_missions()) + ", got " +
                                  std::to_string(world_.mission));
    }
  }

 private:
  static std::vector<std::int64_t> image_shape(const Config& config, const Settings& settings, int view_size) {
    const int tile_size = integer_of(config, "obs_tile_size", 1, minigrid::kMaxTileSize);
    switch (observation_of(config)) {
      case Observation::kFull:
        return {settings.width, settings.height, 3};
      case Observation::kRgb:
        return {settings.height * tile_size, settings.width * tile_size, 3};
      case Observation::kRgbPartial:
        return {view_size * tile_size, view_size * tile_size, 3};
      default:
        return {view_size, view_size, 3};
    }
  }

  bool draws_observation() const { return observation_ == Observation::kRgb || observation_ == Observation::kRgbPartial; }

  // As an array of x and y.
  template <class Visitor>
  static void visit_point(Visitor& visit, const char* name, Point& point) {
    std::span<std::int32_t> pair(&point.x, 2);
    visit(name, pair);
  }

  const Task* task_;
  Settings settings_;
  int view_size_;
  Observation observation_;
  const minigrid::Tiles* obs_tiles_;  // of an RGB observation
  int tile_size_;
  bool is_highlighted_, is_agent_pov_;
  World world_;
};

}  // namespace

ENVFLEET_ENV("MiniGrid", MiniGrid)
