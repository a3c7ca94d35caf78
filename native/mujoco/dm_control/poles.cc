// Tasks with poles: cartpole, pendulum, acrobot.
#include "task.h"

namespace envfleet::dm_control {

namespace {

class Cartpole : public Task {
 public:
  Cartpole(Physics& physics, bool swings_up, bool is_sparse) : Task(physics), swings_up_(swings_up), is_sparse_(is_sparse) {}

  std::vector<Observed> layout() const override {
    return {{"position", {1 + 2 * num_poles()}}, {"velocity", {physics_.model().nv}}};
  }

  void start(RandomState& random) override {
    const std::span<double> qpos = physics_.qpos();
    if (swings_up_) {
      qpos[0] = .01 * random.randn();
      qpos[1] = kPi + .01 * random.randn();
      for (double& angle : qpos.subspan(2)) angle = .1 * random.randn();
    } else {
      qpos[0] = random.uniform(-.1, .1);
      for (double& angle : qpos.subspan(1)) angle = random.uniform(-.034, .034);
    }
    for (double& velocity : physics_.qvel()) velocity = 0.01 * random.randn();
  }

  void observe(double* to) const override {
    *to++ = physics_.data().qpos[0];
    for (int pole = 0; pole < num_poles(); ++pole) {
      *to++ = frame(pole)[kZZ];
      *to++ = frame(pole)[kXZ];
    }
    write_velocities(to);
  }

  double reward() const override {
    const double cart = physics_.data().qpos[0];
    if (is_sparse_) {
      double all = tolerance(cart, {-.25, .25});
      for (int pole = 0; pole < num_poles(); ++pole) all *= tolerance(frame(pole)[kZZ], {.995, 1});
      return all;
    }
    const auto height = [this](std::ptrdiff_t pole) { return (frame(static_cast<int>(pole))[kZZ] + 1) / 2; };
    const double upright = mujoco::pairwise_sum<double>(height, 0, num_poles()) / num_poles();
    const double centered = (1 + tolerance(cart, {.margin = 2})) / 2;
    const double small_control = (4 + tolerance<Shape::kArray>(physics_.data().ctrl[0], kSmallControl)) / 5;
    double slowest = 1;
    for (int i = 1; i < physics_.model().nv; ++i) {
      const double own = tolerance<Shape::kArray>(physics_.data().qvel[i], {.margin = 5});
      slowest = own < slowest || std::isnan(own) ? own : slowest;
    }
    return upright * small_control * ((1 + slowest) / 2) * centered;
  }

 private:
  // The world and the cart come first.
  int num_poles() const { return static_cast<int>(physics_.model().nbody) - 2; }
  const double* frame(int pole) const { return physics_.xmat(2 + pole); }

  bool swings_up_, is_sparse_;
};

class Pendulum : public Task {
 public:
  explicit Pendulum(Physics& physics) : Task(physics), pole_(physics.body("pole")) {}

  std::vector<Observed> layout() const override { return {{"orientation", {2}}, {"velocity", {1}}}; }
  void start(RandomState& random) override { physics_.qpos()[0] = random.uniform(-kPi, kPi); }
  void observe(double* to) const override {
    *to++ = physics_.xmat(pole_)[kZZ];
    *to++ = physics_.xmat(pole_)[kXZ];
    write_velocities(to);
  }
  double reward() const override { return tolerance(physics_.xmat(pole_)[kZZ], {numpy::cos(degrees(8)), 1}); }

 private:
  int pole_;
};

class Acrobot : public Task {
 public:
  Acrobot(Physics& physics, bool is_sparse)
      : Task(physics),
        is_sparse_(is_sparse),
        upper_arm_(physics.body("upper_arm")),
        lower_arm_(physics.body("lower_arm")),
        tip_(physics.site("tip")),
        target_(physics.site("target")),
        shoulder_(physics.joint_position("shoulder")),
        elbow_(physics.joint_position("elbow")) {}

  std::vector<Observed> layout() const override { return {{"orientations", {4}}, {"velocity", {2}}}; }
  void start(RandomState& random) override {
    physics_.qpos()[shoulder_] = random.uniform(-kPi, kPi);
    physics_.qpos()[elbow_] = random.uniform(-kPi, kPi);
  }
  void observe(double* to) const override {
    for (const MatrixElement element : {kXZ, kZZ}) {
      *to++ = physics_.xmat(upper_arm_)[element];
      *to++ = physics_.xmat(lower_arm_)[element];
    }
    write_velocities(to);
  }
  double reward() const override {
    return tolerance(distance(physics_.site_xpos(target_), physics_.site_xpos(tip_)),
                     {0, physics_.site_size(target_), is_sparse_ ? 0.0 : 1.0});
  }

 private:
  bool is_sparse_;
  int upper_arm_, lower_arm_, tip_, target_, shoulder_, elbow_;
};

}  // namespace

std::unique_ptr<Task> make_pole_task(std::string_view name, Physics& physics) {
  if (name.starts_with("cartpole-")) {
    return std::make_unique<Cartpole>(physics, name.find("balance") == name.npos, name.ends_with("_sparse"));
  }
  if (name == "pendulum-swingup") return std::make_unique<Pendulum>(physics);
  if (name.starts_with("acrobot-")) return std::make_unique<Acrobot>(physics, name.ends_with("_sparse"));
  return nullptr;
}

}  // namespace envfleet::dm_control
