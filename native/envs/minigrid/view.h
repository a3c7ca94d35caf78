// The agent's view: the squares before it, turned so that it looks up, without those that walls and closed doors hide.
#pragma once

#include <cstdint>

#include "envs/minigrid/world.h"

namespace minigrid {

inline constexpr int kMaxViewSize = 63;  // a row of the view is a 64-bit mask

// Bit i of row j says whether square (i, j) of the view can be seen. The agent is in the middle of the last row.
struct Visibility {
  std::uint64_t rows[kMaxViewSize];
};

// Calls visit(i, j, cell) for every square of a view of this size, column by column: the order of an observation.
template <class Visit>
void for_each_in_view(const World& world, int size, Visit&& visit) {
  const Point ahead = kDirections[world.direction];
  const std::int64_t along = static_cast<std::int64_t>(ahead.y) * world.stride() + ahead.x;
  const std::int64_t aside = static_cast<std::int64_t>(ahead.x) * world.stride() - ahead.y;  // to the agent's right
  const Cell* column = &world.cells[world.index(world.agent)] + along * (size - 1) - aside * (size / 2);
  for (int i = 0; i < size; ++i, column += aside) {
    const Cell* cell = column;
    for (int j = 0; j < size; ++j, cell -= along) visit(i, j, *cell);
  }
}

// transparent: the squares of each row that one can see past.
void find_visible(const std::uint64_t* transparent, int size, Visibility& visible);

// Everything is visible.
void see_all(int size, Visibility& visible);

// What the agent sees, or all of it.
void look(const World& world, int size, bool sees_through_walls, Visibility& visible);

// The package's observation of size * size * 3 bytes.
void write_view(const World& world, int size, bool sees_through_walls, std::uint8_t* image);

// The package's FullyObsWrapper: every square, with the agent on its own.
void write_grid(const World& world, std::uint8_t* image);

}  // namespace minigrid
