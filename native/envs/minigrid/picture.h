// Pictures of a World, pixel for pixel those of the package.
//
// Thread safety: tiles are drawn once in the process, whoever needs one first; from then on they are read only.
#pragma once

#include <cstdint>

#include "envs/minigrid/world.h"

namespace minigrid {

class Tiles;

// The tiles of this size, for good: a handful of sizes are in use in a process.
const Tiles& tiles_of(int tile_size);

inline constexpr int kMaxTileSize = 256;

// The whole grid, height * width tiles. is_highlighted: what the agent sees is lighter.
void draw_grid(const World& world, const Tiles& tiles, int view_size, bool sees_through_walls, bool is_highlighted,
               std::uint8_t* rgb);

// What the agent sees, view_size * view_size tiles.
void draw_view(const World& world, const Tiles& tiles, int view_size, bool sees_through_walls, std::uint8_t* rgb);

}  // namespace minigrid
