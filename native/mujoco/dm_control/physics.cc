#include "physics.h"

#include <algorithm>
#include <stdexcept>

#include "../error_handler.h"

namespace envfleet::dm_control {

Physics::Physics(SharedSuiteModel model) : shared_(std::move(model)), model_(*shared_->raw) {
  mjData* made = nullptr;
  mujoco::with_error_handler([&] { made = mj_makeData(&model_); });
  if (made == nullptr) throw std::runtime_error("MuJoCo cannot allocate an mjData");
  data_.reset(made);
}

int Physics::id(mjtObj kind, const char* name) const {
  const int found = mj_name2id(&model_, kind, name);
  if (found < 0) {
    throw std::invalid_argument(std::string("this model of dm_control expected a ") + mju_type2Str(kind) + " named " + name +
                                ", got none; this version of dm_control is unknown: use backend='processes'");
  }
  return found;
}

template <class T>
void Physics::own_array(std::vector<OwnArray<T>>& all, const char* name, T* mjModel::* array, std::int64_t count) {
  const T* shared = model_.*array;
  OwnArray<T>& own = all.emplace_back(std::string("model_") + name, std::vector<T>(shared, shared + count));
  model_.*array = own.values.data();  // a vector's memory stays where it is when `all` grows
}

void Physics::modify(const char* name, mjtNum* mjModel::* array, std::int64_t count) {
  own_array(own_arrays_, name, array, count);
}

void Physics::modify(const char* name, float* mjModel::* array, std::int64_t count) {
  own_array(own_float_arrays_, name, array, count);
}

// Throws where a warning is counted, as dm_control's check_invalid_state().
template <class Body>
void Physics::checked(Body&& body) {
  int before[mjNWARNING];
  for (int i = 0; i < mjNWARNING; ++i) before[i] = data_->warning[i].number;
  mujoco::with_error_handler(body, true);
  for (int i = 0; i < mjNWARNING; ++i) {
    if (data_->warning[i].number > before[i]) {
      throw PhysicsError(std::string("the physics state is invalid: ") +
                         mju_warningText(i, static_cast<std::size_t>(data_->warning[i].lastinfo)));
    }
  }
}

template <class Body>
void Physics::with_disabled(int features, Body&& body) {
  const auto flags = model_.opt.disableflags;
  const auto restore = [&] { model_.opt.disableflags = flags; };
  model_.opt.disableflags |= features;
  try {
    body();
  } catch (...) {
    restore();
    throw;
  }
  restore();
}

void Physics::after_reset() {
  with_disabled(mjDSBL_ACTUATION, [this] { checked([this] { mj_forward(&model_, data_.get()); }); });
}

void Physics::reset() {
  mujoco::with_error_handler([this] { mj_resetData(&model_, data_.get()); });
  try {
    after_reset();
  } catch (const PhysicsError&) {  // the task sets another state next
  }
}

void Physics::step(int count) {
  mjData* const data = data_.get();
  // The parts of `count` steps before the last one. Nothing reads their sensors: each later step computes them again.
  with_disabled(mjDSBL_SENSOR, [&] {
    checked([&] {
      if (count > 1 && has_split_steps()) mj_step2(&model_, data);
      const int hidden_steps = count - 1 - (has_split_steps() ? 1 : 0);
      for (int i = 0; i < hidden_steps; ++i) mj_step(&model_, data);
    });
  });
  checked([&] {
    if (count == 1 && has_split_steps()) {
      mj_step2(&model_, data);
    } else {
      mj_step(&model_, data);
    }
    mj_step1(&model_, data);
  });
}

std::vector<double> Physics::state() {
  std::vector<double> numbers = mujoco::integration_state(&model_, data_.get());
  for_each_own_array([&](auto& own) { numbers.insert(numbers.end(), own.values.begin(), own.values.end()); });
  return numbers;
}

void Physics::save(StateWriter& writer) {
  std::vector<double> numbers = state();
  writer("state", numbers);
}

void Physics::load(StateReader& reader) {
  std::vector<double> numbers;
  reader("state", numbers);
  mujoco::check_state_size(numbers.size(), state().size());
  const double* next = numbers.data() + mj_stateSize(&model_, mjSTATE_INTEGRATION);
  for_each_own_array([&](auto& own) {
    for (auto& value : own.values) value = static_cast<std::remove_reference_t<decltype(value)>>(*next++);
  });
  // The first half of a step: step() begins with the second.
  mujoco::with_error_handler([&] {
    mj_setState(&model_, data_.get(), numbers.data(), mjSTATE_INTEGRATION);
    mj_step1(&model_, data_.get());
  });
  viewed_.forget();
}

}  // namespace envfleet::dm_control
