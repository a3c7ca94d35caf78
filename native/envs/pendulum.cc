// Pendulum swing-up: Gymnasium's Pendulum-v1, gym's Pendulum-v0.
//
// Version 0 moves by the velocity before it is limited, and writes gravity as -sin(theta + pi).
// The state is double and follows Gymnasium's order of operations, with numpy's own sine and cosine. The torque is float32,
// as the action that carries it, and what is computed from it alone stays float32.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

#include "envfleet/env.h"

namespace {

using envfleet::Config;
using envfleet::Out;
using envfleet::Rng;
using envfleet::Spec;
using envfleet::numpy::squared;

// Into [-pi, pi), by Python's modulo: its result takes the divisor's sign.
double normalized_angle(double angle) {
  constexpr double turn = 2 * std::numbers::pi;
  double remainder = std::fmod(angle + std::numbers::pi, turn);
  if (remainder < 0) remainder += turn;
  return remainder - std::numbers::pi;
}

template <int kVersion>
class Pendulum {
 public:
  static constexpr bool writes_every_element = true;

  static envfleet::Params params() { return {{"g", 10.0, "the acceleration of gravity, m/s^2"}}; }

  static void spec(const Config&, Spec& spec) {
    spec.observation(envfleet::box<float>({-1.0, -1.0, -8.0}, {1.0, 1.0, 8.0}));
    spec.action(envfleet::box<float>({1}, -2.0, 2.0));
    spec.reset_option("x_init").reset_option("y_init");
    spec.max_episode_steps(200);
  }

  explicit Pendulum(const Config& config) : g_(config.real("g")) {}

  void reset(Rng& rng, Out& out) {
    const double max_theta = out.option("x_init", std::numbers::pi);
    const double max_theta_dot = out.option("y_init", 1.0);
    if (max_theta < 0 || max_theta_dot < 0) {
      throw std::invalid_argument("reset() expected options x_init >= 0 and y_init >= 0, got " + std::to_string(max_theta) +
                                  " and " + std::to_string(max_theta_dot));
    }
    state_[0] = rng.uniform(-max_theta, max_theta);
    state_[1] = rng.uniform(-max_theta_dot, max_theta_dot);
    last_u_ = 0.0f;
    observe(out);
  }

  void step(const float* action, Out& out) {
    double& theta = state_[0];
    double& theta_dot = state_[1];
    const float torque = std::clamp(action[0], -static_cast<float>(max_torque_), static_cast<float>(max_torque_));
    const double lean = normalized_angle(theta);
    out.reward = -(squared(lean) + 0.1 * squared(theta_dot) + 0.001f * squared(torque));
    const double gravity_part = kVersion == 0 ? -3 * g_ / (2 * l_) * envfleet::numpy::sin(theta + std::numbers::pi)
                                              : 3 * g_ / (2 * l_) * envfleet::numpy::sin(theta);
    const float torque_part = static_cast<float>(3.0 / (m_ * (l_ * l_))) * torque;
    const double unlimited = theta_dot + (gravity_part + torque_part) * dt_;
    theta_dot = std::clamp(unlimited, -max_speed_, max_speed_);
    theta += (kVersion == 0 ? unlimited : theta_dot) * dt_;
    last_u_ = torque;
    observe(out);
  }

  void observe(Out& out) {
    float* obs = out.obs<float>();
    obs[0] = static_cast<float>(envfleet::numpy::cos(state_[0]));
    obs[1] = static_cast<float>(envfleet::numpy::sin(state_[0]));
    obs[2] = static_cast<float>(state_[1]);
  }

  template <class Visitor>
  void fields(Visitor& visit) {
    visit("state", state_);
    visit("last_u", last_u_);
    visit("g", g_);
    visit("m", m_);
    visit("l", l_);
    visit("dt", dt_);
    visit("max_speed", max_speed_);
    visit("max_torque", max_torque_);
  }

 private:
  double g_;
  double m_ = 1.0;
  double l_ = 1.0;
  double dt_ = 0.05;
  double max_speed_ = 8.0;
  double max_torque_ = 2.0;
  double state_[2] = {0, 0};  // theta (0 is upright), theta_dot
  float last_u_ = 0.0f;       // for renderers; 0 draws as Gymnasium's None does
};

}  // namespace

ENVFLEET_ENV("Pendulum-v1", Pendulum<1>)
ENVFLEET_ENV("Pendulum-v0", Pendulum<0>)
