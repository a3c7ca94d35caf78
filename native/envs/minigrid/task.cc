#include "envs/minigrid/task.h"

namespace minigrid {

const Task& find_task(const std::string& name) {
  for (const auto find : {find_maze_task, find_object_task, find_room_task}) {
    if (const Task* task = find(name)) return *task;
  }
  throw std::invalid_argument("task expected the name of a MiniGrid env such as DoorKey, got " + name);
}

void check_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    throw std::invalid_argument(std::string(name) + " expected a number from " + std::to_string(low) + " to " +
                                std::to_string(high) + ", got " + std::to_string(value));
  }
}

}  // namespace minigrid
