// lqr: a chain of masses on springs, of which the first are moved; a quadratic cost. The stiffness of the springs comes
// from the seed, before the first episode.
#include "task.h"

namespace envfleet::dm_control {

namespace {

class Lqr : public Task {
 public:
  explicit Lqr(Physics& physics) : Task(physics) {
    physics.modify("jnt_stiffness", &mjModel::jnt_stiffness, physics.model().njnt);
  }

  std::vector<Observed> layout() const override {
    return {{"position", {physics_.model().nq}}, {"velocity", {physics_.model().nv}}};
  }

  void start(RandomState& random) override {
    if (random.is_fresh() || !has_model_) draw_model(random);
    std::vector<double> unit(static_cast<std::size_t>(physics_.model().nq));
    for (double& value : unit) value = random.randn();
    const double length = norm(unit.data(), physics_.model().nq);
    for (std::size_t i = 0; i < unit.size(); ++i) physics_.qpos()[i] = std::numbers::sqrt2 * unit[i] / length;
  }

  void observe(double* to) const override { write_velocities(write_positions(to)); }

  double reward() const override {
    const double state_cost = 0.5 * dot(physics_.data().qpos, physics_.data().qpos, physics_.model().nq);
    const double control_cost = 0.5 * dot(physics_.data().ctrl, physics_.data().ctrl, physics_.model().nu);
    return 1 - (state_cost + control_cost * kControlCost);
  }

  bool is_terminated() const override {
    std::vector<double> state(physics_.data().qpos, physics_.data().qpos + physics_.model().nq);
    state.insert(state.end(), physics_.data().qvel, physics_.data().qvel + physics_.model().nv);
    return norm(state.data(), static_cast<int>(state.size())) < kAtRest;
  }

  void save(StateWriter& writer) override { writer("has_model", has_model_); }
  void load(StateReader& reader) override { reader("has_model", has_model_); }

 private:
  static constexpr double kControlCost = 0.1, kAtRest = 1e-6;

  void draw_model(RandomState& random) {
    for (int joint = 0; joint < physics_.model().njnt; ++joint) {
      physics_.model().jnt_stiffness[joint] = random.uniform(15, 25);
      random.uniform(0, 0);  // the damping
    }
    has_model_ = true;
  }

  bool has_model_ = false;  // an env that was rebuilt goes on with its generator, without a model
};

}  // namespace

std::unique_ptr<Task> make_lqr_task(std::string_view name, Physics& physics) {
  if (name.starts_with("lqr-")) return std::make_unique<Lqr>(physics);
  return nullptr;
}

}  // namespace envfleet::dm_control
