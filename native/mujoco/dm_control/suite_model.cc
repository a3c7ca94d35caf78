#include "suite_model.h"

#include <deque>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "../error_handler.h"
#include "blas.h"
#include "envfleet/env.h"

namespace envfleet::dm_control {

SuiteModel::SuiteModel(const void* mjb, std::int64_t size, int n_sub_steps, double step_limit)
    : n_sub_steps(n_sub_steps), step_limit(step_limit) {
  // A VFS, since not every version can load a model from a buffer.
  auto vfs = std::make_unique<mjVFS>();
  mj_defaultVFS(vfs.get());
  const int result = mj_addBufferVFS(vfs.get(), "suite.mjb", mjb, static_cast<int>(size));
  if (result == 0) mujoco::with_error_handler([&] { raw = mj_loadModel("suite.mjb", vfs.get()); }, true);
  mj_deleteVFS(vfs.get());
  if (raw == nullptr) throw std::runtime_error("MuJoCo cannot load a model of dm_control's suite");
}

namespace {

struct Known {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<const SuiteModel>> models;
  // Between adding a model and building its envs, nothing else holds it.
  std::deque<SharedSuiteModel> recent;
};

// Never destroyed: a pool that lives until the process ends releases its models after statics are gone.
Known& known() {
  static Known& all = *new Known;
  return all;
}

constexpr std::size_t kMostKept = 2;  // 12 MB each, most of it textures

void keep_recent(Known& all, SharedSuiteModel model) {
  std::erase(all.recent, model);
  all.recent.push_back(std::move(model));
  if (all.recent.size() > kMostKept) all.recent.pop_front();
}

}  // namespace

SharedSuiteModel suite_model(const std::string& task) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  const auto found = all.models.find(task);
  SharedSuiteModel model = found == all.models.end() ? nullptr : found->second.lock();
  if (model == nullptr) throw std::invalid_argument("the model of " + task + " is not loaded; make the env by its id");
  return model;
}

void keep_for_rebuild(SharedSuiteModel model) {
  thread_local SharedSuiteModel kept;
  kept = std::move(model);
}

}  // namespace envfleet::dm_control

// 1: the model of this task is there, and stays so for a pool that is made now.
ENVFLEET_EXPORT int envfleet_dm_control_has_model(const char* task) {
  using namespace envfleet::dm_control;
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  const auto found = all.models.find(task);
  SharedSuiteModel model = found == all.models.end() ? nullptr : found->second.lock();
  if (model == nullptr) return 0;
  keep_recent(all, std::move(model));
  return 1;
}

// mjb: what mj_saveModel writes. 0: it was added.
ENVFLEET_EXPORT int envfleet_dm_control_add_model(const char* task, const void* mjb, std::int64_t size, int n_sub_steps,
                                                  double step_limit) {
  using namespace envfleet::dm_control;
  try {
    auto model = std::make_shared<const SuiteModel>(mjb, size, n_sub_steps, step_limit);
    Known& all = known();
    const std::lock_guard lock(all.mutex);
    all.models[task] = model;
    keep_recent(all, std::move(model));
    return 0;
  } catch (...) {
    return 1;
  }
}

// Only the first call counts: afterwards, envs may be running.
ENVFLEET_EXPORT void envfleet_dm_control_set_fused_kernels(int dot, int gemv, int gemm) {
  static std::once_flag is_set;
  std::call_once(is_set, [&] { envfleet::dm_control::fused_kernels = {dot != 0, gemv != 0, gemm != 0}; });
}
