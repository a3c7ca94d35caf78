// Acrobot (Sutton; the equations of the book): Gymnasium's Acrobot-v1.
//
// Double precision, Gymnasium's order of operations, numpy's own sine and cosine. The motion is chaotic: a last bit
// grows to the size of the observation within one episode, so every rounding counts.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "envfleet/env.h"
#include "envs/reset_bounds.h"

namespace {

using envfleet::Config;
using envfleet::Out;
using envfleet::Rng;
using envfleet::Spec;
using envfleet::numpy::squared;
using std::numbers::pi;

constexpr double kLinkLength1 = 1.0;
constexpr double kLinkMass1 = 1.0;
constexpr double kLinkMass2 = 1.0;
constexpr double kLinkCom1 = 0.5;  // where along the link its centre of mass is
constexpr double kLinkCom2 = 0.5;
constexpr double kLinkInertia = 1.0;
constexpr double kGravity = 9.8;
constexpr double kTimeStep = 0.2;
constexpr double kMaxVelocity1 = 4 * pi;
constexpr double kMaxVelocity2 = 9 * pi;

// theta1, theta2, and their velocities.
using State = std::array<double, 4>;

State derivative(const State& state, double torque) {
  constexpr double m1 = kLinkMass1, m2 = kLinkMass2, l1 = kLinkLength1, lc1 = kLinkCom1, lc2 = kLinkCom2;
  const auto [theta1, theta2, dtheta1, dtheta2] = state;
  const double sine2 = envfleet::numpy::sin(theta2);
  double cosines[3] = {theta2, theta1 + theta2 - pi / 2, theta1 - pi / 2};
  envfleet::numpy::cos(cosines, cosines, 3);
  const double cosine2 = cosines[0];
  const double d1 = m1 * (lc1 * lc1) + m2 * (l1 * l1 + lc2 * lc2 + 2 * l1 * lc2 * cosine2) + kLinkInertia + kLinkInertia;
  const double d2 = m2 * (lc2 * lc2 + l1 * lc2 * cosine2) + kLinkInertia;
  const double phi2 = m2 * lc2 * kGravity * cosines[1];
  const double phi1 = -m2 * l1 * lc2 * squared(dtheta2) * sine2 - 2 * m2 * l1 * lc2 * dtheta2 * dtheta1 * sine2 +
                      (m1 * lc1 + m2 * l1) * kGravity * cosines[2] + phi2;
  const double ddtheta2 = (torque + d2 / d1 * phi1 - m2 * l1 * lc2 * squared(dtheta1) * sine2 - phi2) /
                          (m2 * (lc2 * lc2) + kLinkInertia - squared(d2) / d1);
  const double ddtheta1 = -(d2 * ddtheta2 + phi1) / d1;
  return {dtheta1, dtheta2, ddtheta1, ddtheta2};
}

State advanced(const State& from, double by, const State& slope) {
  State result;
  for (int i = 0; i < 4; ++i) result[i] = from[i] + by * slope[i];
  return result;
}

// One step of the classic fourth-order Runge-Kutta method.
State integrate(const State& start, double torque) {
  const State k1 = derivative(start, torque);
  const State k2 = derivative(advanced(start, kTimeStep / 2, k1), torque);
  const State k3 = derivative(advanced(start, kTimeStep / 2, k2), torque);
  const State k4 = derivative(advanced(start, kTimeStep, k3), torque);
  State result;
  for (int i = 0; i < 4; ++i) result[i] = start[i] + kTimeStep / 6 * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]);
  return result;
}

// Into [-pi, pi] by whole turns, which round as Gymnasium's do. An angle that grew without
// bounds (a state set from outside) would keep a worker in the loops for ever.
double wrapped(double angle) {
  if (!(std::abs(angle) < 1e3)) [[unlikely]]
    return std::remainder(angle, 2 * pi);
  while (angle > pi) angle -= 2 * pi;
  while (angle < -pi) angle += 2 * pi;
  return angle;
}

class Acrobot {
 public:
  static constexpr bool writes_every_element = true;

  static void spec(const Config&, Spec& spec) {
    spec.observation(
        envfleet::box<float>({-1, -1, -1, -1, -kMaxVelocity1, -kMaxVelocity2}, {1, 1, 1, 1, kMaxVelocity1, kMaxVelocity2}));
    spec.action(envfleet::discrete(3));
    spec.reset_option("low").reset_option("high");
    spec.max_episode_steps(500).reward_threshold(-100.0);
  }

  void reset(Rng& rng, Out& out) {
    const auto [low, high] = envfleet::reset_bounds(out, -0.1, 0.1);
    // Gymnasium rounds the initial state to float32 and then goes on in double.
    for (double& value : state_) value = static_cast<float>(rng.uniform(low, high));
    observe(out);
  }

  void step(int action, Out& out) {
    state_ = integrate(state_, action - 1.0);
    state_[0] = wrapped(state_[0]);
    state_[1] = wrapped(state_[1]);
    state_[2] = std::clamp(state_[2], -kMaxVelocity1, kMaxVelocity1);
    state_[3] = std::clamp(state_[3], -kMaxVelocity2, kMaxVelocity2);
    double heights[2] = {state_[0], state_[1] + state_[0]};
    envfleet::numpy::cos(heights, heights, 2);
    out.terminated = -heights[0] - heights[1] > 1.0;
    out.reward = out.terminated ? 0.0 : -1.0;
    observe(out);
  }

  void observe(Out& out) {
    // Gymnasium's initial state is a float32 array, and numpy computes its sines in float32, which rounds
    // differently. No state that a step has computed fits into float32.
    if (std::all_of(state_.begin(), state_.end(), [](double value) { return static_cast<float>(value) == value; })) {
      observe_as<float>(out);
    } else {
      observe_as<double>(out);
    }
  }

  template <class Visitor>
  void fields(Visitor& visit) {
    visit("state", state_);
  }

 private:
  template <class Real>
  void observe_as(Out& out) const {
    const Real angles[2] = {static_cast<Real>(state_[0]), static_cast<Real>(state_[1])};
    Real sines[2], cosines[2];
    envfleet::numpy::sin(angles, sines, 2);
    envfleet::numpy::cos(angles, cosines, 2);
    float* obs = out.obs<float>();
    for (int i = 0; i < 2; ++i) {
      obs[2 * i] = static_cast<float>(cosines[i]);
      obs[2 * i + 1] = static_cast<float>(sines[i]);
      obs[4 + i] = static_cast<float>(state_[2 + i]);
    }
  }

  State state_ = {};
};

}  // namespace

ENVFLEET_ENV("Acrobot-v1", Acrobot)
