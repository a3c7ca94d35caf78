#include "simulation.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "error_handler.h"

namespace envfleet::mujoco {

Simulation::Simulation(SharedModel model, std::int64_t frame_skip) : model_(std::move(model)), frame_skip_(frame_skip) {
  if (frame_skip < 1) {
    throw std::invalid_argument("frame_skip expected at least 1, got " + std::to_string(frame_skip));
  }
  mjData* made = nullptr;
  with_error_handler([&] { made = mj_makeData(model_->raw()); });
  if (made == nullptr) throw std::runtime_error("MuJoCo cannot allocate the mjData of " + model_->path());
  data_.reset(made);
  init_qpos_.assign(data_->qpos, data_->qpos + this->model()->nq);
  init_qvel_.assign(data_->qvel, data_->qvel + this->model()->nv);
}

void Simulation::reset() {
  with_error_handler([&] { mj_resetData(model_->raw(), data_.get()); });
}

void Simulation::forward() {
  with_error_handler([&] { mj_forward(model_->raw(), data_.get()); });
}

void Simulation::advance(const float* control, bool with_contact_forces) {
  std::copy_n(control, model()->nu, data_->ctrl);
  const mjModel* const raw = model_->raw();
  mjData* const data = data_.get();
  const std::int64_t substeps = frame_skip_;
  if (substeps < 1) throw std::invalid_argument("frame_skip expected at least 1, got " + std::to_string(substeps));
  with_error_handler([=] {
    for (std::int64_t i = 0; i < substeps; ++i) mj_step(raw, data);
    // MuJoCo leaves it out unless a sensor asks.
    if (with_contact_forces) mj_rnePostConstraint(raw, data);
  });
}

void Simulation::save(StateWriter& writer) {
  std::vector<double> numbers = state();
  writer("state", numbers);
}

void Simulation::load(StateReader& reader) {
  std::vector<double> numbers;
  reader("state", numbers);
  check_state_size(numbers.size(), static_cast<std::size_t>(mj_stateSize(model_->raw(), mjSTATE_INTEGRATION)));
  with_error_handler([&] { mj_setState(model_->raw(), data_.get(), numbers.data(), mjSTATE_INTEGRATION); });
  viewed_.forget();
}

}  // namespace envfleet::mujoco
