#include "envs/minigrid/world.h"

#include <algorithm>

namespace minigrid {

World::World(int width, int height, int max_steps, int border)
    : width_(width), height_(height), max_steps_(max_steps), border_(border), stride_(width + 2 * border) {
  cells.assign(static_cast<std::size_t>(stride_) * (height + 2 * border), kWall);
  clear();
  agent = {0, 0};  // observable before the first reset
}

void World::clear() {
  for (int y = 0; y < height_; ++y) std::fill_n(cells.begin() + index({0, y}), width_, kEmpty);
  agent = target = other = kNowhere;
  direction = 0;
  step_count = 0;
  carrying = wanted = kEmpty;
  mission = 0;
  obstacles.clear();
}

Outcome World::act(int action) {
  ++step_count;
  Outcome outcome;
  const Point ahead = front();
  if (!contains(ahead)) [[unlikely]]
    throw_outside(ahead);
  Cell& cell = cells[index(ahead)];
  switch (action) {
    case kLeft:
      direction = (direction + 3) & 3;
      break;
    case kRight:
      direction = (direction + 1) & 3;
      break;
    case kForward:
      if (can_enter(cell)) agent = ahead;
      if (type_of(cell) == kGoalType) {
        outcome.terminated = true;
        outcome.reward = success();
      } else if (type_of(cell) == kLavaType) {
        outcome.terminated = true;
      }
      break;
    case kPickUp:
      if (can_pick_up(cell) && carrying == kEmpty) {
        carrying = cell;
        cell = kEmpty;
      }
      break;
    case kDrop:
      if (cell == kEmpty && carrying != kEmpty) {
        cell = carrying;
        carrying = kEmpty;
      }
      break;
    case kToggle:
      if (type_of(cell) == kBox) {
        cell = contents_of(cell);
      } else if (type_of(cell) == kDoor) {
        const bool fits = type_of(carrying) == kKey && color_of(carrying) == color_of(cell);
        if (state_of(cell) != kLocked || fits) {
          cell = make(kDoor, color_of(cell), state_of(cell) == kOpen ? kClosed : kOpen);
        }
      }
      break;
    default:  // kDone
      break;
  }
  return outcome;
}

void World::check() const {
  if (cells.size() != static_cast<std::size_t>(stride_) * (height_ + 2 * border_)) {
    throw std::invalid_argument("cells expected " +
                                std::to_string(static_cast<std::int64_t>(stride_) * (height_ + 2 * border_)) +
                                " values, got " + std::to_string(cells.size()));
  }
  for (int y = -border_; y < height_ + border_; ++y) {
    for (int x = -border_; x < width_ + border_; ++x) {
      const Cell cell = get({x, y});
      if (contains({x, y}) ? !is_valid(cell) : cell != kWall) {
        throw std::invalid_argument("cells expected a square of MiniGrid at (" + std::to_string(x) + ", " +
                                    std::to_string(y) + "), got " + std::to_string(cell));
      }
    }
  }
  const bool carries_object = carrying == kEmpty || (is_valid(carrying) && can_pick_up(carrying));
  bool is_right = contains(agent) && direction >= 0 && direction < 4 && step_count >= 0 && carries_object &&
                  step_count < kMaxSteps && is_valid(wanted) && is_nowhere_or_inside(target) &&
                  is_nowhere_or_inside(other) && obstacles.size() % 2 == 0;
  for (std::size_t i = 0; is_right && i < obstacles.size(); i += 2) is_right = contains({obstacles[i], obstacles[i + 1]});
  if (!is_right) throw std::invalid_argument("the fields are those of no world of this size");
}

void World::throw_outside(Point at) const {
  throw std::out_of_range("expected a square of the " + std::to_string(width_) + " x " + std::to_string(height_) +
                          " grid, got (" + std::to_string(at.x) + ", " + std::to_string(at.y) +
                          "); the parameters leave no room for this task, or the agent stands at the edge");
}

void World::throw_full() {
  throw std::runtime_error("found no free square for an object; a larger grid or fewer objects leave more room");
}

}  // namespace minigrid
