#include "simulation.h"

#include <algorithm>
#include <cstring>
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

void Simulation::note_state(std::vector<double>& state) const {
  state.resize(static_cast<std::size_t>(mj_stateSize(model_->raw(), mjSTATE_INTEGRATION)));
  mj_getState(model_->raw(), data_.get(), state.data(), mjSTATE_INTEGRATION);
}

bool Simulation::was_written() {
  if (viewed_.empty()) return false;
  std::vector<double> now;
  note_state(now);
  // As bytes: a NaN that stayed one was not written.
  const bool is_same = std::memcmp(now.data(), viewed_.data(), now.size() * sizeof(double)) == 0;
  viewed_.clear();
  return !is_same;
}

void Simulation::save(StateWriter& writer) {
  std::vector<double> state;
  note_state(state);
  writer("state", state);
}

void Simulation::load(StateReader& reader) {
  std::vector<double> state;
  reader("state", state);
  const int expected = mj_stateSize(model_->raw(), mjSTATE_INTEGRATION);
  if (state.size() != static_cast<std::size_t>(expected)) {
    throw std::invalid_argument("the state holds " + std::to_string(state.size()) + " numbers, this model has " +
                                std::to_string(expected));
  }
  with_error_handler([&] { mj_setState(model_->raw(), data_.get(), state.data(), mjSTATE_INTEGRATION); });
  viewed_.clear();  // of an earlier get_attr: the difference is not one that a visitor wrote
}

}  // namespace envfleet::mujoco
