#include "envs/minigrid/view.h"

#include <cstring>

namespace minigrid {

namespace {

// All seeds and what they reach through open squares, to either side.
std::uint64_t spread_up(std::uint64_t seeds, std::uint64_t open, int size) {
  for (int shift = 1; shift < size; shift *= 2) {
    seeds |= open & (seeds << shift);
    open &= open << shift;
  }
  return seeds;
}

std::uint64_t spread_down(std::uint64_t seeds, std::uint64_t open, int size) {
  for (int shift = 1; shift < size; shift *= 2) {
    seeds |= open & (seeds >> shift);
    open &= open >> shift;
  }
  return seeds;
}

void put(std::uint8_t* image, Cell cell) {
  image[0] = static_cast<std::uint8_t>(cell);
  image[1] = static_cast<std::uint8_t>(cell >> 8);
  image[2] = static_cast<std::uint8_t>(cell >> 16);
}

}  // namespace

void find_visible(const std::uint64_t* transparent, int size, Visibility& visible) {
  const std::uint64_t first = 1, last = std::uint64_t{1} << (size - 1);
  std::uint64_t lit = std::uint64_t{1} << (size / 2);
  for (int j = size - 1; j >= 0; --j) {
    // A square that is seen and can be seen past shows its neighbour and the two above them. The package walks each
    // row to the right up to the last square but one, then to the left down to the second.
    const std::uint64_t to_right = spread_up(lit & transparent[j], transparent[j], size) & ~last;
    lit |= to_right << 1;
    const std::uint64_t to_left = spread_down(lit & transparent[j], transparent[j], size) & ~first;
    lit |= to_left >> 1;
    visible.rows[j] = lit;
    lit = to_right | to_right << 1 | to_left | to_left >> 1;
  }
}

void see_all(int size, Visibility& visible) {
  for (int j = 0; j < size; ++j) visible.rows[j] = ~std::uint64_t{0};
}

void look(const World& world, int size, bool sees_through_walls, Visibility& visible) {
  if (sees_through_walls) return see_all(size, visible);
  std::uint64_t transparent[kMaxViewSize] = {};
  for_each_in_view(world, size, [&](int i, int j, Cell cell) {
    transparent[j] |= static_cast<std::uint64_t>((cell & kOpaque) == 0) << i;
  });
  find_visible(transparent, size, visible);
}

void write_view(const World& world, int size, bool sees_through_walls, std::uint8_t* image) {
  Visibility visible;
  look(world, size, sees_through_walls, visible);
  std::uint8_t* next = image;
  for_each_in_view(world, size, [&](int i, int j, Cell cell) {
    put(next, (visible.rows[j] >> i & 1) != 0 ? cell : 0);
    next += 3;
  });
  // The agent sees what it carries where it stands.
  put(image + (size / 2 * size + size - 1) * 3, world.carrying);
}

void write_grid(const World& world, std::uint8_t* image) {
  for (int x = 0; x < world.width(); ++x) {
    for (int y = 0; y < world.height(); ++y) {
      const Point at{x, y};
      put(image, at == world.agent ? make(kAgent, kRed, static_cast<std::uint32_t>(world.direction)) : world.get(at));
      image += 3;
    }
  }
}

}  // namespace minigrid
