// Task: the rules of one of MiniGrid's envs on a World: how its grid is made and what it rewards.
//
// Thread safety: a Task has no state; all envs of one kind share it.
#pragma once

#include <cstdint>
#include <string>

#include "envs/minigrid/world.h"

namespace minigrid {

// The parameters of an env, under the package's names where it has them. 0 stands for "not given" of sizes and limits.
struct Settings {
  int size = 0, width = 0, height = 0;
  int max_steps = 0;
  bool sees_through_walls = false;
  Point agent_start = kNowhere;  // kNowhere: anywhere
  int agent_start_dir = 0;
  Point goal_start = kNowhere;  // the same
  Cell obstacle = kLava;
  int num_crossings = 0, num_obstacles = 0, num_objects = 0, strip2_row = 0;
  int min_rooms = 0, max_rooms = 0, max_room_size = 0;
  int room_size = 0, num_rows = 0, num_cols = 0;
  std::uint32_t object_type = kBall;
  bool random_length = false, key_in_box = false, blocked = false;
  Point agent_room;
  int num_quarters = 0, num_rooms_visited = 0;
};

class Task {
 public:
  virtual ~Task() = default;

  // Fills in width, height and max_steps; throws std::invalid_argument over parameters that make no grid.
  virtual void complete(Settings& settings) const = 0;
  virtual int num_actions() const { return kDone + 1; }
  // The package's missions, counted in the order of their placeholders, the last one fastest.
  virtual int num_missions() const { return 1; }
  // Onto a world that was cleared.
  virtual void generate(const Settings& settings, World& world, Rng& rng) const = 0;
  virtual Outcome step(World& world, int action, Rng&) const { return world.act(action); }
};

// The task of this name; throws std::invalid_argument.
const Task& find_task(const std::string& name);

// One function a file of tasks: the task of this name among them, or nullptr.
const Task* find_maze_task(const std::string& name);
const Task* find_object_task(const std::string& name);
const Task* find_room_task(const std::string& name);

// Throws unless low <= value <= high.
void check_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high);

inline constexpr int kMaxSize = 255;

// Of a square grid.
inline void complete_square(Settings& settings, int smallest, int default_max_steps) {
  check_range("size", settings.size, smallest, kMaxSize);
  settings.width = settings.height = settings.size;
  if (settings.max_steps == 0) settings.max_steps = default_max_steps;
}

}  // namespace minigrid
