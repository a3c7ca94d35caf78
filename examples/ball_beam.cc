// A ball on a tilting beam: keep it on the beam and move it to the mark.
// Compiled by custom_cpp_env.py with envfleet.compile(); docs/writing_a_cpp_env.md explains each part.
#include <algorithm>
#include <cmath>

#include "envfleet/env.h"

struct BallBeam {
  static envfleet::Params params() {
    return {{"gravity", 9.81, "in m/s^2"}, {"friction", 0.1, "fraction of the speed lost per second"}};
  }

  static void spec(const envfleet::Config&, envfleet::Spec& spec) {
    // Position, speed, mark (in meters from the center) and the angle of the beam.
    spec.observation(envfleet::box<float>({4}));
    spec.action(envfleet::box<float>({1}, -1, 1));  // angular velocity of the beam
    spec.info("distance", envfleet::scalar<float>());
    spec.max_episode_steps(200);
  }

  explicit BallBeam(const envfleet::Config& config) : gravity(config.real("gravity")), friction(config.real("friction")) {}

  void reset(envfleet::Rng& rng, envfleet::Out& out) {
    position = rng.uniform(-0.5, 0.5);
    mark = rng.uniform(-0.5, 0.5);
    speed = angle = 0;
    observe(out);
  }

  void step(const float* action, envfleet::Out& out) {
    constexpr double kSeconds = 0.02;
    angle = std::clamp(angle + 3.0 * action[0] * kSeconds, -0.5, 0.5);
    speed += (gravity * std::sin(angle) - friction * speed) * kSeconds;
    position += speed * kSeconds;
    out.terminated = std::abs(position) > 1.0;
    out.reward = out.terminated ? -10.0 : 1.0 - std::abs(position - mark);
    observe(out);
  }

  void observe(envfleet::Out& out) {
    float* obs = out.obs<float>(0);
    obs[0] = static_cast<float>(position);
    obs[1] = static_cast<float>(speed);
    obs[2] = static_cast<float>(mark);
    obs[3] = static_cast<float>(angle);
    *out.info<float>(0) = static_cast<float>(std::abs(position - mark));
  }

  template <class Visitor>
  void fields(Visitor& visit) {
    visit("position", position);
    visit("speed", speed);
    visit("mark", mark);
    visit("angle", angle);
  }

  void render(envfleet::Frame& frame) {
    constexpr int kWidth = 160, kHeight = 100;
    frame.resize(kHeight, kWidth, 240);
    for (int x = 0; x < kWidth; ++x) {
      const double along = (x - kWidth / 2) / (kWidth / 2.0);
      const int beam = height_at(along, kHeight);
      const bool marked = std::abs(along - mark) < 0.03;
      for (int y = beam; y < std::min(beam + 4, kHeight); ++y) paint(frame, y, x, marked ? 0 : 90, marked ? 150 : 90);
    }
    const int ball_x = static_cast<int>(kWidth / 2 * (1 + position)), ball_y = height_at(position, kHeight) - 6;
    for (int dy = -5; dy <= 5; ++dy) {
      for (int dx = -5; dx <= 5; ++dx) {
        const int y = ball_y + dy, x = ball_x + dx;
        if (dx * dx + dy * dy <= 25 && y >= 0 && y < kHeight && x >= 0 && x < kWidth) paint(frame, y, x, 220, 60);
      }
    }
  }

  int height_at(double along, int height) const {
    return height / 2 + static_cast<int>(height * 0.6 * along * std::sin(angle));
  }

  static void paint(envfleet::Frame& frame, int y, int x, int red, int green) {
    auto* pixel = frame.pixel(y, x);
    pixel[0] = static_cast<std::uint8_t>(red);
    pixel[1] = static_cast<std::uint8_t>(green);
    pixel[2] = 60;
  }

  double gravity, friction;
  double position = 0, speed = 0, mark = 0, angle = 0;
};

ENVFLEET_ENV("BallBeam-v0", BallBeam)
