// MuJoCo's integration state as numbers: everything that the next step depends on.
#pragma once

#include <mujoco/mujoco.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace envfleet::mujoco {

inline std::vector<double> integration_state(const mjModel* model, const mjData* data) {
  std::vector<double> state(static_cast<std::size_t>(mj_stateSize(model, mjSTATE_INTEGRATION)));
  mj_getState(model, data, state.data(), mjSTATE_INTEGRATION);
  return state;
}

inline void check_state_size(std::size_t got, std::size_t expected) {
  if (got == expected) return;
  throw std::invalid_argument("the state holds " + std::to_string(got) + " numbers, this model has " +
                              std::to_string(expected));
}

// Tells whether a visitor of the fields wrote one of those that make up the state.
class ViewedState {
 public:
  void note(std::vector<double> state) { before_ = std::move(state); }
  // After load(): the difference is not one that a visitor wrote.
  void forget() { before_.clear(); }
  template <class Now>
  bool was_written(Now&& state_now) {
    if (before_.empty()) return false;
    const std::vector<double> now = state_now();
    // As bytes: a NaN that stayed one was not written.
    const bool is_same = std::memcmp(now.data(), before_.data(), now.size() * sizeof(double)) == 0;
    before_.clear();
    return !is_same;
  }

 private:
  std::vector<double> before_;
};

}  // namespace envfleet::mujoco
