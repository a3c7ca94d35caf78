// CartPole (Barto, Sutton and Anderson): Gymnasium's CartPole-v0 and v1.
//
// The arithmetic follows Gymnasium's in double precision and in the same order, so
// trajectories agree to the float32 of the observation.
#include <cmath>
#include <numbers>

#include "envfleet/env.h"
#include "reset_bounds.h"

namespace {

using envfleet::Config;
using envfleet::Out;
using envfleet::Rng;
using envfleet::Spec;

struct SineAndCosine {
  double sine, cosine;
};

// A pole that has not fallen leans by less than 0.21 rad. Up to twice that the Taylor series
// is exact to the last bit or two of a double, and, unlike the library's functions, it is
// inlined into the loop over envs. Summed in pairs and not from the inside out: the loop waits
// for the longest chain of operations, not for their number.
inline SineAndCosine sine_and_cosine(double angle) {
  if (!(std::abs(angle) < 0.42)) [[unlikely]]
    return {std::sin(angle), std::cos(angle)};
  const double x2 = angle * angle;
  const double x4 = x2 * x2;
  const double x8 = x4 * x4;
  const double sine = (-1.0 / 6 + x2 * (1.0 / 120)) + x4 * (-1.0 / 5040 + x2 * (1.0 / 362880)) +
                      x8 * (-1.0 / 39916800 + x2 * (1.0 / 6227020800.0));
  const double cosine = (-1.0 / 2 + x2 * (1.0 / 24)) + x4 * (-1.0 / 720 + x2 * (1.0 / 40320)) +
                        x8 * ((-1.0 / 3628800 + x2 * (1.0 / 479001600)) + x4 * (-1.0 / 87178291200.0));
  return {angle + angle * x2 * sine, 1.0 + x2 * cosine};
}

class CartPole {
 public:
  static constexpr bool writes_every_element = true;

  static envfleet::Params params() {
    return {{"sutton_barto_reward", false, "reward 0 a step and -1 at the end, instead of 1 a step"}};
  }

  static void spec(const Config&, Spec& spec) { describe(spec, 500, 475.0); }

  explicit CartPole(const Config& config) : sutton_barto_reward_(config.flag("sutton_barto_reward")) {}

  void reset(Rng& rng, Out& out) {
    const auto [low, high] = envfleet::reset_bounds(out, -0.05, 0.05);
    for (double& value : state_) value = rng.uniform(low, high);
    observe(out);
  }

  void step(int action, Out& out) {
    const double x_dot = state_[1], theta = state_[2], theta_dot = state_[3];
    const double force = force_mag_ * (2 * (action == 1) - 1);  // no branch: actions are as good as random
    const auto [sine, cosine] = sine_and_cosine(theta);
    // Gymnasium divides three times by the mass; this waits for one division that waits for nothing.
    const double inverse_mass = 1.0 / total_mass_;
    const double temp = (force + polemass_length_ * (theta_dot * theta_dot) * sine) * inverse_mass;
    const double theta_acc =
        (gravity_ * sine - cosine * temp) / (length_ * (4.0 / 3.0 - masspole_ * (cosine * cosine) * inverse_mass));
    const double x_acc = temp - polemass_length_ * theta_acc * cosine * inverse_mass;
    state_[0] += tau_ * x_dot;
    state_[1] += tau_ * x_acc;
    state_[2] += tau_ * theta_dot;
    state_[3] += tau_ * theta_acc;
    out.terminated = std::abs(state_[0]) > x_threshold_ || std::abs(state_[2]) > theta_threshold_;
    if (sutton_barto_reward_) {
      out.reward = out.terminated ? -1.0 : 0.0;
    } else {
      out.reward = 1.0;
    }
    observe(out);
  }

  void observe(Out& out) {
    float* obs = out.obs<float>();
    for (int i = 0; i < 4; ++i) obs[i] = static_cast<float>(state_[i]);
  }

  template <class Visitor>
  void fields(Visitor& visit) {
    visit("state", state_);
    visit("gravity", gravity_);
    visit("masscart", masscart_);
    visit("masspole", masspole_);
    visit("total_mass", total_mass_);
    visit("length", length_);
    visit("polemass_length", polemass_length_);
    visit("force_mag", force_mag_);
    visit("tau", tau_);
    visit("theta_threshold_radians", theta_threshold_);
    visit("x_threshold", x_threshold_);
  }

 protected:
  static void describe(Spec& spec, int max_episode_steps, double reward_threshold) {
    constexpr double angle = 2.0 * 12 * 2 * std::numbers::pi / 360;
    const std::vector<double> high = {4.8, envfleet::infinity, angle, envfleet::infinity};
    spec.observation(envfleet::box<float>({-high[0], -high[1], -high[2], -high[3]}, high));
    spec.action(envfleet::discrete(2));
    spec.reset_option("low").reset_option("high");
    spec.max_episode_steps(max_episode_steps).reward_threshold(reward_threshold);
  }

 private:
  bool sutton_barto_reward_;
  double gravity_ = 9.8;
  double masscart_ = 1.0;
  double masspole_ = 0.1;
  double total_mass_ = masspole_ + masscart_;
  double length_ = 0.5;  // half the pole's length
  double polemass_length_ = masspole_ * length_;
  double force_mag_ = 10.0;
  double tau_ = 0.02;
  double theta_threshold_ = 12 * 2 * std::numbers::pi / 360;
  double x_threshold_ = 2.4;
  double state_[4] = {0, 0, 0, 0};
};

class CartPoleV0 : public CartPole {
 public:
  using CartPole::CartPole;
  static void spec(const Config&, Spec& spec) { describe(spec, 200, 195.0); }
};

}  // namespace

ENVFLEET_ENV("CartPole-v0", CartPoleV0)
ENVFLEET_ENV("CartPole-v1", CartPole)
