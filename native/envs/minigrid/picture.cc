#include "envs/minigrid/picture.h"

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "envs/minigrid/view.h"

namespace minigrid {

namespace {

constexpr int kNoAgent = 4;
constexpr int kSubdivisions = 3;  // a pixel is the mean of 3 x 3 points

using Rgb = std::array<std::uint8_t, 3>;

constexpr Rgb kColors[kNumColors] = {{255, 0, 0}, {0, 255, 0}, {0, 0, 255}, {112, 39, 195}, {255, 255, 0}, {100, 100, 100}};
constexpr Rgb kBlack = {0, 0, 0};

// One tile at three times its size. Shapes are given in parts of the tile, and contain a point by the package's own
// arithmetic, single precision included.
class Canvas {
 public:
  explicit Canvas(int tile_size)
      : size_(tile_size * kSubdivisions), pixels_(static_cast<std::size_t>(size_) * size_, kBlack) {}

  template <class Contains>
  void fill(Rgb color, Contains&& contains) {
    for (int y = 0; y < size_; ++y) {
      for (int x = 0; x < size_; ++x) {
        if (contains((x + 0.5) / size_, (y + 0.5) / size_)) pixels_[static_cast<std::size_t>(y) * size_ + x] = color;
      }
    }
  }

  void rectangle(Rgb color, double left, double right, double top, double bottom) {
    fill(color, [=](double x, double y) { return x >= left && x <= right && y >= top && y <= bottom; });
  }

  void circle(Rgb color, double cx, double cy, double radius) {
    fill(color, [=](double x, double y) { return (x - cx) * (x - cx) + (y - cy) * (y - cy) <= radius * radius; });
  }

  void line(Rgb color, double x0, double y0, double x1, double y1, double radius) {
    const auto start_x = static_cast<float>(x0), start_y = static_cast<float>(y0);
    float dx = static_cast<float>(x1) - start_x, dy = static_cast<float>(y1) - start_y;
    const float length = std::sqrt(dx * dx + dy * dy);
    dx /= length;
    dy /= length;
    const double left = std::fmin(x0, x1) - radius, right = std::fmax(x0, x1) + radius;
    const double top = std::fmin(y0, y1) - radius, bottom = std::fmax(y0, y1) + radius;
    fill(color, [=](double x, double y) {
      if (x < left || x > right || y < top || y > bottom) return false;
      const double along = std::fmin(std::fmax((x - start_x) * dx + (y - start_y) * dy, 0.0), length);
      const double off_x = x - (start_x + along * dx), off_y = y - (start_y + along * dy);
      return std::sqrt(off_x * off_x + off_y * off_y) <= radius;
    });
  }

  // The agent: a triangle that points in its direction.
  void agent(int direction) {
    constexpr float ax = 0.12F, ay = 0.19F, bx = 0.87F, by = 0.50F, cx = 0.12F, cy = 0.81F;
    constexpr float v0x = cx - ax, v0y = cy - ay, v1x = bx - ax, v1y = by - ay;
    constexpr float dot00 = v0x * v0x + v0y * v0y, dot01 = v0x * v1x + v0y * v1y, dot11 = v1x * v1x + v1y * v1y;
    constexpr float inverse = 1.0F / (dot00 * dot11 - dot01 * dot01);
    const double theta = 0.5 * 3.141592653589793 * direction;
    const double cosine = std::cos(-theta), sine = std::sin(-theta);
    fill(kColors[kRed], [=](double px, double py) {
      const double x = px - 0.5, y = py - 0.5;
      const double v2x = 0.5 + x * cosine - y * sine - ax, v2y = 0.5 + y * cosine + x * sine - ay;
      const double dot02 = v0x * v2x + v0y * v2y, dot12 = v1x * v2x + v1y * v2y;
      const double u = (dot11 * dot02 - dot01 * dot12) * inverse, v = (dot00 * dot12 - dot01 * dot02) * inverse;
      return u >= 0 && v >= 0 && u + v < 1;
    });
  }

  void highlight() {
    for (Rgb& pixel : pixels_) {
      for (std::uint8_t& value : pixel) value = static_cast<std::uint8_t>(std::fmin(value + 0.30 * (255 - value), 255.0));
    }
  }

  // Means over rows and then over columns, cut off to whole numbers.
  std::vector<std::uint8_t> reduced() const {
    const int tile_size = size_ / kSubdivisions;
    std::vector<std::uint8_t> out;
    out.reserve(static_cast<std::size_t>(tile_size) * tile_size * 3);
    for (int y = 0; y < tile_size; ++y) {
      for (int x = 0; x < tile_size; ++x) {
        for (int channel = 0; channel < 3; ++channel) {
          double sum = 0.0;
          for (int dy = 0; dy < kSubdivisions; ++dy) {
            double row = 0.0;
            for (int dx = 0; dx < kSubdivisions; ++dx) {
              row += pixels_[static_cast<std::size_t>(y * kSubdivisions + dy) * size_ + x * kSubdivisions + dx][channel];
            }
            sum += row / kSubdivisions;
          }
          out.push_back(static_cast<std::uint8_t>(sum / kSubdivisions));
        }
      }
    }
    return out;
  }

 private:
  int size_;
  std::vector<Rgb> pixels_;
};

Rgb scaled(Rgb color, double factor) {
  for (std::uint8_t& value : color) value = static_cast<std::uint8_t>(factor * value);
  return color;
}

void draw_lava(Canvas& canvas) {
  canvas.rectangle({255, 128, 0}, 0, 1, 0, 1);
  for (int i = 0; i < 3; ++i) {
    const double low = 0.3 + 0.2 * i, high = 0.4 + 0.2 * i;
    canvas.line(kBlack, 0.1, low, 0.3, high, 0.03);
    canvas.line(kBlack, 0.3, high, 0.5, low, 0.03);
    canvas.line(kBlack, 0.5, low, 0.7, high, 0.03);
    canvas.line(kBlack, 0.7, high, 0.9, low, 0.03);
  }
}

void draw_door(Canvas& canvas, Rgb color, std::uint32_t state) {
  if (state == kOpen) {
    canvas.rectangle(color, 0.88, 1.00, 0.00, 1.00);
    canvas.rectangle(kBlack, 0.92, 0.96, 0.04, 0.96);
  } else if (state == kLocked) {
    canvas.rectangle(color, 0.00, 1.00, 0.00, 1.00);
    canvas.rectangle(scaled(color, 0.45), 0.06, 0.94, 0.06, 0.94);
    canvas.rectangle(color, 0.52, 0.75, 0.50, 0.56);
  } else {
    canvas.rectangle(color, 0.00, 1.00, 0.00, 1.00);
    canvas.rectangle(kBlack, 0.04, 0.96, 0.04, 0.96);
    canvas.rectangle(color, 0.08, 0.92, 0.08, 0.92);
    canvas.rectangle(kBlack, 0.12, 0.88, 0.12, 0.88);
    canvas.circle(color, 0.75, 0.50, 0.08);
  }
}

void draw_key(Canvas& canvas, Rgb color) {
  canvas.rectangle(color, 0.50, 0.63, 0.31, 0.88);
  canvas.rectangle(color, 0.38, 0.50, 0.59, 0.66);
  canvas.rectangle(color, 0.38, 0.50, 0.81, 0.88);
  canvas.circle(color, 0.56, 0.28, 0.190);
  canvas.circle(kBlack, 0.56, 0.28, 0.064);
}

void draw_box(Canvas& canvas, Rgb color) {
  canvas.rectangle(color, 0.12, 0.88, 0.12, 0.88);
  canvas.rectangle(kBlack, 0.18, 0.82, 0.18, 0.82);
  canvas.rectangle(color, 0.16, 0.84, 0.47, 0.53);
}

void draw_object(Canvas& canvas, Cell cell) {
  const Rgb color = kColors[color_of(cell)];
  switch (type_of(cell)) {
    case kWallType:
    case kGoalType:
      return canvas.rectangle(color, 0, 1, 0, 1);
    case kFloorType:
      return canvas.rectangle(scaled(color, 0.5), 0.031, 1, 0.031, 1);
    case kDoor:
      return draw_door(canvas, color, state_of(cell));
    case kKey:
      return draw_key(canvas, color);
    case kBall:
      return canvas.circle(color, 0.5, 0.5, 0.31);
    case kBox:
      return draw_box(canvas, color);
    case kLavaType:
      return draw_lava(canvas);
    default:
      return;
  }
}

}  // namespace

class Tiles {
 public:
  explicit Tiles(int size) : size_(size) {}

  int size() const { return size_; }

  // agent: its direction, or kNoAgent.
  const std::uint8_t* tile(Cell cell, int agent, bool is_highlighted) const {
    const std::size_t kind = (type_of(cell) * kNumColors + color_of(cell)) * 3 + state_of(cell);
    const std::size_t position = (kind * (kNoAgent + 1) + agent) * 2 + (is_highlighted ? 1 : 0);
    const std::uint8_t* drawn = tiles_[position].load(std::memory_order_acquire);
    return drawn != nullptr ? drawn : draw(position, cell, agent, is_highlighted);
  }

  // Copies a tile into a picture of `width` tiles a row.
  void put(const std::uint8_t* tile, Point at, int width, std::uint8_t* rgb) const {
    const std::size_t row_bytes = static_cast<std::size_t>(size_) * 3;
    std::uint8_t* out = rgb + (static_cast<std::size_t>(at.y) * size_ * width + at.x) * row_bytes;
    for (int y = 0; y < size_; ++y, out += row_bytes * width, tile += row_bytes) std::memcpy(out, tile, row_bytes);
  }

 private:
  const std::uint8_t* draw(std::size_t position, Cell cell, int agent, bool is_highlighted) const {
    Canvas canvas(size_);
    canvas.rectangle({100, 100, 100}, 0, 0.031, 0, 1);
    canvas.rectangle({100, 100, 100}, 0, 1, 0, 0.031);
    draw_object(canvas, cell);
    if (agent != kNoAgent) canvas.agent(agent);
    if (is_highlighted) canvas.highlight();
    const std::lock_guard lock(mutex_);
    // Another thread may have drawn it meanwhile; its tile is handed out already.
    const std::uint8_t* drawn = tiles_[position].load(std::memory_order_relaxed);
    if (drawn != nullptr) return drawn;
    drawn = pixels_.emplace_back(canvas.reduced()).data();
    tiles_[position].store(drawn, std::memory_order_release);
    return drawn;
  }

  static constexpr std::size_t kNumTiles = (kLavaType + 1) * kNumColors * 3 * (kNoAgent + 1) * 2;

  const int size_;
  mutable std::mutex mutex_;
  mutable std::vector<std::vector<std::uint8_t>> pixels_;  // a vector that moves keeps its pixels where they are
  mutable std::array<std::atomic<const std::uint8_t*>, kNumTiles> tiles_{};
};

const Tiles& tiles_of(int tile_size) {
  // Never destroyed: a thread that is stuck in an env outlives main().
  static auto& mutex = *new std::mutex;
  static auto& tiles = *new std::map<int, std::unique_ptr<Tiles>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Tiles>& own = tiles[tile_size];
  if (own == nullptr) own = std::make_unique<Tiles>(tile_size);
  return *own;
}

void draw_grid(const World& world, const Tiles& tiles, int view_size, bool sees_through_walls, bool is_highlighted,
               std::uint8_t* rgb) {
  std::vector<std::uint8_t> is_lit(static_cast<std::size_t>(world.width()) * world.height(), 0);
  if (is_highlighted) {
    Visibility visible;
    look(world, view_size, sees_through_walls, visible);
    const Point ahead = kDirections[world.direction], aside{-ahead.y, ahead.x};
    for (int j = 0; j < view_size; ++j) {
      for (int i = 0; i < view_size; ++i) {
        const int forward = view_size - 1 - j, right = i - view_size / 2;
        const Point at{world.agent.x + ahead.x * forward + aside.x * right,
                       world.agent.y + ahead.y * forward + aside.y * right};
        if ((visible.rows[j] >> i & 1) != 0 && world.contains(at))
          is_lit[static_cast<std::size_t>(at.y) * world.width() + at.x] = 1;
      }
    }
  }
  for (int y = 0; y < world.height(); ++y) {
    for (int x = 0; x < world.width(); ++x) {
      const Point at{x, y};
      const int agent = at == world.agent ? world.direction : kNoAgent;
      const bool lit = is_lit[static_cast<std::size_t>(y) * world.width() + x] != 0;
      tiles.put(tiles.tile(world.get(at), agent, lit), at, world.width(), rgb);
    }
  }
}

void draw_view(const World& world, const Tiles& tiles, int view_size, bool sees_through_walls, std::uint8_t* rgb) {
  Visibility visible;
  look(world, view_size, sees_through_walls, visible);
  for_each_in_view(world, view_size, [&](int i, int j, Cell cell) {
    const bool is_agent = i == view_size / 2 && j == view_size - 1;
    const bool is_visible = (visible.rows[j] >> i & 1) != 0;
    const Cell shown = is_agent ? world.carrying : is_visible ? cell : kEmpty;
    tiles.put(tiles.tile(shown, is_agent ? 3 : kNoAgent, is_visible), {i, j}, view_size, rgb);
  });
}

}  // namespace minigrid
