// Catch: move a paddle under a falling ball. The rules are those of bsuite's catch.
//
// This is the env to copy when you write your own. Built alone it is a plug-in:
//
//   envfleet.compile("catch.cc")
//
// or by hand, where hidden visibility keeps two plug-ins apart in one process,
//
//   c++ -std=c++20 -O3 -shared -fPIC -fvisibility=hidden -I INCLUDE catch.cc -o catch.so
//
// with what envfleet.get_include() says for INCLUDE.
//
// An env needs spec, reset and step. All else here is optional and says so.
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "envfleet/env.h"

namespace {

struct Catch {
  // Optional: what make("Catch-v0", rows=..., columns=...) accepts. A default fixes the type.
  static envfleet::Params params() {
    return {{"rows", 10, "the height of the board; the paddle is in the last row"}, {"columns", 5, "its width"}};
  }

  // The spaces. Called once before any env is built, so this is where parameters are checked.
  static void spec(const envfleet::Config& config, envfleet::Spec& spec) {
    const std::int64_t rows = config.integer("rows");
    const std::int64_t columns = config.integer("columns");
    if (rows < 2 || columns < 1) {
      throw std::invalid_argument("Catch expected rows >= 2 and columns >= 1, got " + std::to_string(rows) + " and " +
                                  std::to_string(columns));
    }
    spec.observation(envfleet::box<float>({rows, columns}, 0.0, 1.0));
    spec.action(envfleet::discrete(3));
  }

  explicit Catch(const envfleet::Config& config)
      : rows(static_cast<std::int32_t>(config.integer("rows"))),
        columns(static_cast<std::int32_t>(config.integer("columns"))) {}

  // Starts an episode. rng is this env's own: the same seed gives the same episodes.
  void reset(envfleet::Rng& rng, envfleet::Out& out) {
    ball_x = static_cast<std::int32_t>(rng.integers(0, columns));
    ball_y = 0;
    paddle_x = columns / 2;
    observe(out);
  }

  // One step; the action is 0 (left), 1 (stay) or 2 (right). An env that draws while it
  // steps takes the generator too: step(int action, Rng& rng, Out& out).
  void step(int action, envfleet::Out& out) {
    check_board();
    paddle_x = std::clamp(paddle_x + action - 1, 0, columns - 1);
    ++ball_y;
    if (ball_y == rows - 1) {
      out.reward = paddle_x == ball_x ? 1.0 : -1.0;
      out.terminated = true;
    }
    observe(out);
  }

  // Optional: writes the present observation, and nothing else. The row is zero when this
  // is called, so the two cells that are not are enough. (An env that writes every element
  // can say so, `static constexpr bool writes_every_element = true;`, and saves the zeroing.)
  void observe(envfleet::Out& out) {
    check_board();
    float* board = out.obs<float>();
    board[ball_y * columns + ball_x] = 1.0f;
    board[(rows - 1) * columns + paddle_x] = 1.0f;
  }

  // Optional: the state, named once; it gives get_state, set_state, get_attr and set_attr.
  // What the parameters fix (rows, columns) is not state.
  template <class Visitor>
  void fields(Visitor& visit) {
    visit("ball_x", ball_x);
    visit("ball_y", ball_y);
    visit("paddle_x", paddle_x);
  }

  // Optional: an RGB picture.
  void render(envfleet::Frame& frame) {
    constexpr std::int32_t cell = 16;  // pixels a side
    frame.resize(rows * cell, columns * cell);
    const auto paint = [&](std::int32_t row, std::int32_t column, std::uint8_t red, std::uint8_t green, std::uint8_t blue) {
      for (std::int32_t y = row * cell; y < (row + 1) * cell; ++y) {
        for (std::int32_t x = column * cell; x < (column + 1) * cell; ++x) {
          std::uint8_t* pixel = frame.pixel(y, x);
          pixel[0] = red;
          pixel[1] = green;
          pixel[2] = blue;
        }
      }
    };
    if (is_on_board(rows - 1, paddle_x)) paint(rows - 1, paddle_x, 90, 160, 255);
    if (is_on_board(ball_y, ball_x)) paint(ball_y, ball_x, 255, 200, 60);
  }

  // The engine does not check fields: one set from outside must not become a write past the row.
  void check_board() const {
    if (!is_on_board(ball_y, ball_x) || !is_on_board(rows - 1, paddle_x)) [[unlikely]] {
      throw std::out_of_range("Catch expected ball and paddle on the board, got ball_x " + std::to_string(ball_x) +
                              ", ball_y " + std::to_string(ball_y) + ", paddle_x " + std::to_string(paddle_x));
    }
  }

  bool is_on_board(std::int32_t row, std::int32_t column) const {
    return row >= 0 && row < rows && column >= 0 && column < columns;
  }

  std::int32_t rows;
  std::int32_t columns;
  std::int32_t ball_x = 0;
  std::int32_t ball_y = 0;
  std::int32_t paddle_x = 0;
};

}  // namespace

ENVFLEET_ENV("Catch-v0", Catch)
