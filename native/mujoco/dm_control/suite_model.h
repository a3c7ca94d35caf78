// SuiteModel: a compiled model of dm_control's suite with what control.Environment knows about it.
//
// Python assembles and compiles the models, since the package does (envfleet/families/dm_control/models.py), and adds them
// here by the name of their task.
//
// Thread safety: any thread may ask for one; a model never changes after it was added.
#pragma once

#include <mujoco/mujoco.h>

#include <cstdint>
#include <memory>
#include <string>

namespace envfleet::dm_control {

struct SuiteModel {
  SuiteModel(const void* mjb, std::int64_t size, int n_sub_steps, double step_limit);
  ~SuiteModel() { mj_deleteModel(raw); }
  SuiteModel(const SuiteModel&) = delete;
  SuiteModel& operator=(const SuiteModel&) = delete;

  mjModel* raw = nullptr;
  int n_sub_steps;    // of the simulation in a step of the task
  double step_limit;  // steps of the task in an episode; infinity: no limit
};

using SharedSuiteModel = std::shared_ptr<const SuiteModel>;

// The model of a task such as "walker-run". Throws when it was not added, or is not in use any more.
SharedSuiteModel suite_model(const std::string& task);

// Holds the model of the env that this thread destroyed last: an env that is rebuilt asks for it right after.
void keep_for_rebuild(SharedSuiteModel model);

}  // namespace envfleet::dm_control
