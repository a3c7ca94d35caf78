// CartPole (Barto, Sutton and Anderson): Gymnasium's CartPole-v0 and v1.
//
// The default arithmetic is Gymnasium's: double precision, the same operations in the same order, numpy's own sine
// and cosine. An upright pole amplifies a difference in the last bit to the size of the observation within an
// episode, so nothing less stays on Gymnasium's trajectory. fast_math trades that for speed.
#include <cmath>
#include <memory>
#include <numbers>

#include "envfleet/env.h"
#include "envs/reset_bounds.h"

namespace {

using envfleet::Config;
using envfleet::Out;
using envfleet::Rng;
using envfleet::Spec;

struct SineAndCosine {
  double sine, cosine;
};

// fast_math: up to where the series below is exact to the last bit or two of a double. Twice the lean at which a
// pole counts as fallen.
constexpr double kSeriesLimit = 0.42;

// The Taylor series, which unlike numpy's functions is inlined into the loop over envs. Summed in pairs and not from the
// inside out: the loop waits for the longest chain of operations, not for their number.
inline SineAndCosine series(double angle) {
  const double x2 = angle * angle;
  const double x4 = x2 * x2;
  const double x8 = x4 * x4;
  const double sine = (-1.0 / 6 + x2 * (1.0 / 120)) + x4 * (-1.0 / 5040 + x2 * (1.0 / 362880)) +
                      x8 * (-1.0 / 39916800 + x2 * (1.0 / 6227020800.0));
  const double cosine = (-1.0 / 2 + x2 * (1.0 / 24)) + x4 * (-1.0 / 720 + x2 * (1.0 / 40320)) +
                        x8 * ((-1.0 / 3628800 + x2 * (1.0 / 479001600)) + x4 * (-1.0 / 87178291200.0));
  return {angle + angle * x2 * sine, 1.0 + x2 * cosine};
}

// What Gymnasium's env has as attributes; they may be changed env by env.
struct Physics {
  double gravity = 9.8;
  double masscart = 1.0;
  double masspole = 0.1;
  double total_mass = masspole + masscart;
  double length = 0.5;  // half the pole's length
  double polemass_length = masspole * length;
  double force_mag = 10.0;
  double tau = 0.02;
  double theta_threshold = 12 * 2 * std::numbers::pi / 360;
  double x_threshold = 2.4;

  bool operator==(const Physics&) const = default;
};

enum class Arithmetic { exact, fast };

// One step of the equations of motion, the same for one pole and for several side by side.
template <Arithmetic arithmetic>
inline void move(const Physics& physics, SineAndCosine lean, int action, double& x, double& x_dot, double& theta,
                 double& theta_dot) {
  const auto over_mass = [&](double value) {
    // The fast way is one division that waits for nothing, then products.
    return arithmetic == Arithmetic::fast ? value * (1.0 / physics.total_mass) : value / physics.total_mass;
  };
  const double force = physics.force_mag * (2 * (action == 1) - 1);  // no branch: actions are as good as random
  const double temp = over_mass(force + physics.polemass_length * (theta_dot * theta_dot) * lean.sine);
  const double theta_acc = (physics.gravity * lean.sine - lean.cosine * temp) /
                           (physics.length * (4.0 / 3.0 - over_mass(physics.masspole * (lean.cosine * lean.cosine))));
  const double x_acc = temp - over_mass(physics.polemass_length * theta_acc * lean.cosine);
  x += physics.tau * x_dot;
  x_dot += physics.tau * x_acc;
  theta += physics.tau * theta_dot;
  theta_dot += physics.tau * theta_acc;
}

constexpr int kLanes = 8;

// Standard poles side by side: values of one kind next to each other, as vector instructions want them.
struct Poles {
  double x[kLanes], x_dot[kLanes], theta[kLanes], theta_dot[kLanes];
};

template <Arithmetic arithmetic, class LeanOf>
inline void move_all(Poles& poles, const LeanOf& lean_of, const std::int32_t* actions, std::uint8_t* fallen) {
  constexpr Physics physics;
  for (int i = 0; i < kLanes; ++i) {
    move<arithmetic>(physics, lean_of(i), actions[i], poles.x[i], poles.x_dot[i], poles.theta[i], poles.theta_dot[i]);
  }
  for (int i = 0; i < kLanes; ++i) {
    fallen[i] = (std::abs(poles.x[i]) > physics.x_threshold) | (std::abs(poles.theta[i]) > physics.theta_threshold);
  }
}

ENVFLEET_VECTOR_CLONES void move_fast(Poles& poles, const std::int32_t* actions, std::uint8_t* fallen) {
  move_all<Arithmetic::fast>(poles, [&](int i) { return series(poles.theta[i]); }, actions, fallen);
}

ENVFLEET_VECTOR_CLONES void move_exact(Poles& poles, const double* sines, const double* cosines, const std::int32_t* actions,
                                       std::uint8_t* fallen) {
  move_all<Arithmetic::exact>(poles, [&](int i) { return SineAndCosine{sines[i], cosines[i]}; }, actions, fallen);
}

class CartPole {
 public:
  static constexpr bool writes_every_element = true;
  static constexpr int lanes = kLanes;

  static envfleet::Params params() {
    return {{"sutton_barto_reward", false, "reward 0 per step and -1 at the end, instead of 1 per step"},
            {"fast_math", false, "faster arithmetic that leaves Gymnasium's trajectory in the last bit"}};
  }

  static void spec(const Config&, Spec& spec) { describe(spec, 500, 475.0); }

  explicit CartPole(const Config& config)
      : sutton_barto_reward_(config.flag("sutton_barto_reward")), is_fast_(config.flag("fast_math")) {}

  void reset(Rng& rng, Out& out) {
    const auto [low, high] = envfleet::reset_bounds(out, -0.05, 0.05);
    for (double& value : state_) value = rng.uniform(low, high);
    observe(out);
  }

  void step(int action, Out& out) {
    static constexpr Physics standard;
    const Physics& physics = own_physics_ == nullptr ? standard : *own_physics_;
    const double theta = state_[2];
    if (is_fast_ && std::abs(theta) < kSeriesLimit) {
      move<Arithmetic::fast>(physics, series(theta), action, state_[0], state_[1], state_[2], state_[3]);
    } else {
      const SineAndCosine lean{envfleet::numpy::sin(theta), envfleet::numpy::cos(theta)};
      move<Arithmetic::exact>(physics, lean, action, state_[0], state_[1], state_[2], state_[3]);
    }
    out.terminated = std::abs(state_[0]) > physics.x_threshold || std::abs(state_[2]) > physics.theta_threshold;
    out.reward = reward(out.terminated);
    observe(out);
  }

  template <class Self>
  static bool step_lanes(Self* const* envs, const std::int32_t* actions, envfleet::LaneOut<kLanes>& out) {
    Poles poles;
    bool all_are_standard = true, all_are_fast = true, any_is_fast = false;
    for (int i = 0; i < kLanes; ++i) {
      const CartPole& env = *envs[i];
      poles.x[i] = env.state_[0];
      poles.x_dot[i] = env.state_[1];
      poles.theta[i] = env.state_[2];
      poles.theta_dot[i] = env.state_[3];
      all_are_standard &= env.own_physics_ == nullptr;
      all_are_fast &= env.is_fast_ & (std::abs(env.state_[2]) < kSeriesLimit);
      any_is_fast |= env.is_fast_;
    }
    if (!all_are_standard || any_is_fast != all_are_fast) return false;
    if (all_are_fast) {
      move_fast(poles, actions, out.terminated);
    } else {
      double sines[kLanes], cosines[kLanes];
      envfleet::numpy::sin(poles.theta, sines, kLanes);
      envfleet::numpy::cos(poles.theta, cosines, kLanes);
      move_exact(poles, sines, cosines, actions, out.terminated);
    }
    float* obs = out.template obs<float>();
    for (int i = 0; i < kLanes; ++i) {
      CartPole& env = *envs[i];
      const double state[4] = {poles.x[i], poles.x_dot[i], poles.theta[i], poles.theta_dot[i]};
      for (int k = 0; k < 4; ++k) {
        env.state_[k] = state[k];
        obs[4 * i + k] = static_cast<float>(state[k]);
      }
      out.reward[i] = env.reward(out.terminated[i] != 0);
    }
    return true;
  }

  void observe(Out& out) {
    float* obs = out.obs<float>();
    for (int i = 0; i < 4; ++i) obs[i] = static_cast<float>(state_[i]);
  }

  template <class Visitor>
  void fields(Visitor& visit) {
    visit("state", state_);
    Physics physics = own_physics_ == nullptr ? Physics{} : *own_physics_;
    visit("gravity", physics.gravity);
    visit("masscart", physics.masscart);
    visit("masspole", physics.masspole);
    visit("total_mass", physics.total_mass);
    visit("length", physics.length);
    visit("polemass_length", physics.polemass_length);
    visit("force_mag", physics.force_mag);
    visit("tau", physics.tau);
    visit("theta_threshold_radians", physics.theta_threshold);
    visit("x_threshold", physics.x_threshold);
    own_physics_ = physics == Physics{} ? nullptr : std::make_unique<Physics>(physics);
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
  double reward(bool has_fallen) const {
    if (sutton_barto_reward_) return has_fallen ? -1.0 : 0.0;
    return 1.0;
  }

  double state_[4] = {0, 0, 0, 0};
  // Null: the standard ones. Elsewhere, because a step that reads only its state is faster the closer the states are.
  std::unique_ptr<const Physics> own_physics_;
  bool sutton_barto_reward_;
  bool is_fast_;
};

class CartPoleV0 : public CartPole {
 public:
  using CartPole::CartPole;
  static void spec(const Config&, Spec& spec) { describe(spec, 200, 195.0); }
};

}  // namespace

ENVFLEET_ENV("CartPole-v0", CartPoleV0)
ENVFLEET_ENV("CartPole-v1", CartPole)
