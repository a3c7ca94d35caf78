// CartPole (Barto, Sutton and Anderson): Gymnasium's CartPole-v0 and v1.
//
// The default arithmetic is Gymnasium's: double precision, the same operations in the same order, numpy's own sine
// and cosine. An upright pole amplifies a difference in the last bit to the size of the observation within an
// episode, so nothing less stays on Gymnasium's trajectory. fast_math trades that for speed.
#include <bit>
#include <cmath>
#include <cstring>
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

constexpr int kMaxLanes = 64;
constexpr int kVector = 8;  // lanes come in multiples of it, which spares the vector loops a remainder

using Poles = envfleet::LaneState<double, 4>;  // x, x_dot, theta, theta_dot
using FourDoubles = double __attribute__((vector_size(32)));
using FourFloats = float __attribute__((vector_size(16)));

// The values at these positions of two vectors.
#if __has_builtin(__builtin_shufflevector)
#define SELECT(first, second, ...) __builtin_shufflevector(first, second, __VA_ARGS__)
#else  // gcc before version 12
using Positions = int __attribute__((vector_size(16)));
#define SELECT(first, second, ...) __builtin_shuffle(first, second, Positions{__VA_ARGS__})
#endif

// Writes rows of observations, four at a time: columns become rows.
[[gnu::always_inline]] inline void write_obs(const Poles& poles, float* __restrict obs, int count) {
  for (int first = 0; first < count; first += 4) {
    FourFloats columns[4];
    for (int k = 0; k < 4; ++k) {
      FourDoubles column;
      std::memcpy(&column, poles[k] + first, sizeof column);
      columns[k] = __builtin_convertvector(column, FourFloats);
    }
    const FourFloats low01 = SELECT(columns[0], columns[1], 0, 4, 1, 5);
    const FourFloats high01 = SELECT(columns[0], columns[1], 2, 6, 3, 7);
    const FourFloats low23 = SELECT(columns[2], columns[3], 0, 4, 1, 5);
    const FourFloats high23 = SELECT(columns[2], columns[3], 2, 6, 3, 7);
    const FourFloats rows[4] = {SELECT(low01, low23, 0, 1, 4, 5), SELECT(low01, low23, 2, 3, 6, 7),
                                SELECT(high01, high23, 0, 1, 4, 5), SELECT(high01, high23, 2, 3, 6, 7)};
    // One by one: as one block, gcc 12 moves them through the stack, which stalls.
    for (int i = 0; i < 4; ++i) std::memcpy(obs + 4 * (first + i), &rows[i], sizeof rows[i]);
  }
}
#undef SELECT  // sources are compiled together

// Steps standard poles. lean_of(i, theta): the sine and cosine of pole i.
template <Arithmetic arithmetic, class LeanOf>
[[gnu::always_inline]] inline void move_all(const Poles& poles, const std::int32_t* __restrict actions, int count,
                                            const LeanOf& lean_of, std::uint8_t* __restrict fallen) {
  constexpr Physics physics;
  double* __restrict x = poles[0];
  double* __restrict x_dot = poles[1];
  double* __restrict theta = poles[2];
  double* __restrict theta_dot = poles[3];
// gcc does not see that the columns and the arrays of lean_of() are distinct, and would not use vector instructions.
#pragma GCC ivdep
  for (int i = 0; i < count; ++i) {
    move<arithmetic>(physics, lean_of(i, theta[i]), actions[i], x[i], x_dot[i], theta[i], theta_dot[i]);
  }
  for (int i = 0; i < count; ++i) {
    fallen[i] = (std::abs(x[i]) > physics.x_threshold) | (std::abs(theta[i]) > physics.theta_threshold);
  }
}

// Returns false, and has moved no pole, if the series is not exact for all of them.
ENVFLEET_VECTOR_CLONES bool move_fast(const Poles& poles, const std::int32_t* actions, int count, float* obs,
                                      std::uint8_t* fallen) {
  count &= ~(kVector - 1);
  // The bits of positive doubles are ordered as the doubles are; those of NaNs are the largest. Bits and no comparisons: a
  // branch per env would cost as much as its arithmetic.
  constexpr auto kLimitBits = std::bit_cast<std::int64_t>(kSeriesLimit);
  const double* theta = poles[2];
  std::int64_t signs = 0;
  for (int i = 0; i < count; ++i) signs |= kLimitBits - 1 - std::bit_cast<std::int64_t>(std::abs(theta[i]));
  if (signs < 0) return false;
  move_all<Arithmetic::fast>(poles, actions, count, [](int, double angle) { return series(angle); }, fallen);
  write_obs(poles, obs, count);
  return true;
}

ENVFLEET_VECTOR_CLONES void move_exact(const Poles& poles, const std::int32_t* actions, int count, const double* sines,
                                       const double* cosines, float* obs, std::uint8_t* fallen) {
  count &= ~(kVector - 1);
  const auto lean_of = [&](int i, double) { return SineAndCosine{sines[i], cosines[i]}; };
  move_all<Arithmetic::exact>(poles, actions, count, lean_of, fallen);
  write_obs(poles, obs, count);
}

class CartPole {
 public:
  static constexpr bool writes_every_element = true;
  static constexpr int lanes = kMaxLanes;

  static envfleet::Params params() {
    return {{"sutton_barto_reward", false, "reward 0 per step and -1 at the end, instead of 1 per step"},
            {"fast_math", false, "faster arithmetic that leaves Gymnasium's trajectory in the last bit"}};
  }

  static void spec(const Config&, Spec& spec) { describe(spec, 500, 475.0); }

  explicit CartPole(const Config& config) : kind_{config.flag("fast_math"), config.flag("sutton_barto_reward")} {}

  void reset(Rng& rng, Out& out) {
    const auto [low, high] = envfleet::reset_bounds(out, -0.05, 0.05);
    for (double& value : state_) value = rng.uniform(low, high);
    observe(out);
  }

  void step(int action, Out& out) {
    static constexpr Physics standard;
    const Physics& physics = own_physics_ == nullptr ? standard : *own_physics_;
    const double theta = state_[2];
    if (kind_.is_fast && std::abs(theta) < kSeriesLimit) {
      move<Arithmetic::fast>(physics, series(theta), action, state_[0], state_[1], state_[2], state_[3]);
    } else {
      const SineAndCosine lean{envfleet::numpy::sin(theta), envfleet::numpy::cos(theta)};
      move<Arithmetic::exact>(physics, lean, action, state_[0], state_[1], state_[2], state_[3]);
    }
    out.terminated = std::abs(state_[0]) > physics.x_threshold || std::abs(state_[2]) > physics.theta_threshold;
    out.reward = reward(kind_, out.terminated);
    observe(out);
  }

  double (&lane_state() noexcept)[4] { return state_; }
  std::uint32_t lane_kind() const noexcept { return std::bit_cast<std::uint32_t>(kind_); }

  template <int kLanes>
    requires(kLanes % kVector == 0)
  static bool step_lanes(const Poles& poles, const std::int32_t* actions, envfleet::LaneOut<kLanes>& out) {
    const auto kind = std::bit_cast<Kind>(poles.kind);
    if (kind.has_own_physics) return false;
    float* obs = out.template obs<float>();
    if (kind.is_fast) {
      if (!move_fast(poles, actions, kLanes, obs, out.terminated)) return false;
    } else {
      double sines[kLanes], cosines[kLanes];
      envfleet::numpy::sin(poles[2], sines, kLanes);
      envfleet::numpy::cos(poles[2], cosines, kLanes);
      move_exact(poles, actions, kLanes, sines, cosines, obs, out.terminated);
    }
    for (int i = 0; i < kLanes; ++i) out.reward[i] = reward(kind, out.terminated[i] != 0);
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
    kind_.has_own_physics = own_physics_ != nullptr;
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
  // Envs of one kind are stepped side by side.
  struct alignas(4) Kind {
    bool is_fast;
    bool has_sutton_barto_reward;
    bool has_own_physics = false;
    bool unused = false;  // no padding, so that a kind can be compared as one number
  };

  static double reward(const Kind& kind, bool has_fallen) {
    if (kind.has_sutton_barto_reward) return has_fallen ? -1.0 : 0.0;
    return 1.0;
  }

  double state_[4] = {0, 0, 0, 0};
  // Null: the standard ones. Elsewhere, because a step that reads only its state is faster the closer the states are.
  std::unique_ptr<const Physics> own_physics_;
  Kind kind_;
};

class CartPoleV0 : public CartPole {
 public:
  using CartPole::CartPole;
  static void spec(const Config&, Spec& spec) { describe(spec, 200, 195.0); }
};

}  // namespace

ENVFLEET_ENV("CartPole-v0", CartPoleV0)
ENVFLEET_ENV("CartPole-v1", CartPole)
