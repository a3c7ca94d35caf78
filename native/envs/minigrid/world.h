// World: the grid of one MiniGrid env, the agent on it, and what an action does to them.
//
// Draws are those of the package's helpers (_rand_int, _rand_elem, place_obj ...), one for one and in the same order:
// a seed gives the same grid only as long as no draw is added, left out or moved.
//
// Thread safety: none; one env, one World.
// Invariant: the grid lies inside a border of walls, as wide as the agent can see, so that a view never leaves the
// array; nothing writes to the border.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "envfleet/rng.h"
#include "envs/minigrid/cell.h"

namespace minigrid {

using envfleet::Rng;

enum Action { kLeft, kRight, kForward, kPickUp, kDrop, kToggle, kDone };

struct Point {
  std::int32_t x = 0, y = 0;
  bool operator==(const Point&) const = default;
  Point operator+(Point other) const { return {x + other.x, y + other.y}; }
  Point operator-(Point other) const { return {x - other.x, y - other.y}; }
};

static_assert(sizeof(Point) == 2 * sizeof(std::int32_t), "the state and the attributes take a Point as an array of two");

inline constexpr Point kNowhere{-1, -1};
inline constexpr Point kDirections[4] = {{1, 0}, {0, 1}, {-1, 0}, {0, -1}};  // right, down, left, up

// What a step gives besides the observation.
struct Outcome {
  double reward = 0.0;
  bool terminated = false;
};

class World {
 public:
  World(int width, int height, int max_steps, int border);

  int width() const { return width_; }
  int height() const { return height_; }
  int stride() const { return stride_; }

  bool contains(Point at) const { return at.x >= 0 && at.y >= 0 && at.x < width_ && at.y < height_; }
  Cell get(Point at) const { return cells[index(at)]; }
  // Squares of an impossible size or position are a mistake in the env's parameters: checked where grids are made.
  void set(Point at, Cell cell) {
    if (!contains(at)) [[unlikely]]
      throw_outside(at);
    cells[index(at)] = cell;
  }
  std::int64_t index(Point at) const { return static_cast<std::int64_t>(at.y + border_) * stride_ + at.x + border_; }

  // --- making a grid ---

  // An empty grid without an agent: what every task begins with.
  void clear();
  void horizontal_wall(Point from, int length, Cell cell = kWall) {
    for (int i = 0; i < length; ++i) set({from.x + i, from.y}, cell);
  }
  void vertical_wall(Point from, int length, Cell cell = kWall) {
    for (int j = 0; j < length; ++j) set({from.x, from.y + j}, cell);
  }
  void wall_rect(Point top, Point size) {
    horizontal_wall(top, size.x);
    horizontal_wall({top.x, top.y + size.y - 1}, size.x);
    vertical_wall(top, size.y);
    vertical_wall({top.x + size.x - 1, top.y}, size.y);
  }
  void surround() { wall_rect({0, 0}, {width_, height_}); }

  static int random_int(Rng& rng, int low, int high) { return static_cast<int>(rng.integers(low, high)); }
  static Color random_color(Rng& rng) { return kColorsByName[random_int(rng, 0, kNumColors)]; }

  // A free square of this rectangle that `rejects` does not refuse. max_tries: see kNoLimit.
  template <class Rejects>
  Point find_place(Rng& rng, Point top, Point size, int max_tries, Rejects&& rejects) const {
    const Point low{top.x > 0 ? top.x : 0, top.y > 0 ? top.y : 0};
    const Point high{low.x + size.x < width_ ? low.x + size.x : width_, low.y + size.y < height_ ? low.y + size.y : height_};
    // One more than max_tries, as the package counts.
    for (int tries = 0; tries <= max_tries; ++tries) {
      Point at;
      at.x = random_int(rng, low.x, high.x);
      at.y = random_int(rng, low.y, high.y);
      if (get(at) == kEmpty && at != agent && !rejects(at)) return at;
    }
    return kNowhere;
  }
  Point place(Rng& rng, Cell cell, Point top, Point size, int max_tries = kNoLimit) {
    return place(rng, cell, top, size, max_tries, [](Point) { return false; });
  }
  template <class Rejects>
  Point place(Rng& rng, Cell cell, Point top, Point size, int max_tries, Rejects&& rejects) {
    const Point at = find_place(rng, top, size, max_tries, rejects);
    if (at == kNowhere) [[unlikely]]
      throw_full();
    set(at, cell);
    return at;
  }
  Point place(Rng& rng, Cell cell) { return place(rng, cell, {0, 0}, {width_, height_}); }

  void place_agent(Rng& rng, Point top, Point size, int max_tries = kNoLimit) {
    agent = kNowhere;
    agent = place(rng, kEmpty, top, size, max_tries);
    direction = random_int(rng, 0, 4);
  }
  void place_agent(Rng& rng) { place_agent(rng, {0, 0}, {width_, height_}); }

  // --- stepping ---

  Point front() const { return agent + kDirections[direction]; }
  // As the package: what is reached late is worth less.
  double success() const { return 1.0 - 0.9 * (static_cast<double>(step_count) / max_steps_); }
  Outcome act(int action);
  bool is_out_of_time() const { return step_count >= max_steps_; }

  // Throws when fields that were written from outside are those of no world of this size.
  void check() const;

  static constexpr int kMaxSteps = 1'000'000'000;  // of an episode, at most

  // The package has no limit of its own here, and never returns where there is no free square.
  static constexpr int kNoLimit = 1'000'000;

  std::vector<Cell> cells;  // with the border, row by row
  Point agent = kNowhere;
  std::int32_t direction = 0;
  std::int32_t step_count = 0;
  Cell carrying = kEmpty;  // kEmpty: nothing
  std::int32_t mission = 0;
  // Of the tasks that have one: the object, door or square that matters, a second one, the kind of an object.
  Point target = kNowhere;
  Point other = kNowhere;
  Cell wanted = kEmpty;
  std::vector<std::int32_t> obstacles;  // x, y of each that moves

 private:
  [[noreturn]] void throw_outside(Point at) const;
  [[noreturn]] static void throw_full();
  bool is_nowhere_or_inside(Point at) const { return at == kNowhere || contains(at); }

  std::int32_t width_, height_, max_steps_, border_, stride_;
};

}  // namespace minigrid
