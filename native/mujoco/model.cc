#include "model.h"

#include <sys/stat.h>

#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>

#include "error_handler.h"

namespace envfleet::mujoco {

Model::Model(const std::string& path, bool is_own) : path_(path) {
  struct stat found;
  const bool is_there = stat(path.c_str(), &found) == 0;
  // Reading a pipe would block.
  if (!is_there || !S_ISREG(found.st_mode)) {
    const char* what = !is_there ? "is not there" : S_ISDIR(found.st_mode) ? "is a folder" : "is no file";
    throw std::invalid_argument("xml_file expected a MuJoCo XML file, got " + path + ", which " + what);
  }
  char problem[1024] = "";
  try {
    with_error_handler([&] { raw_ = mj_loadXML(path.c_str(), nullptr, problem, sizeof(problem)); }, is_own);
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument("xml_file " + path + " cannot be loaded: " + error.what());
  }
  if (raw_ == nullptr) throw std::invalid_argument("xml_file " + path + " cannot be loaded: " + problem);
}

int Model::body(const char* name) const {
  const int id = mj_name2id(raw_, mjOBJ_BODY, name);
  if (id < 0) throw std::invalid_argument("xml_file " + path_ + " expected a body named " + name + ", got none");
  return id;
}

void Model::expect_sizes(int num_positions, int num_velocities) const {
  if (raw_->nq >= num_positions && raw_->nv >= num_velocities && raw_->nu > 0) return;
  throw std::invalid_argument("xml_file " + path_ + " expected at least " + std::to_string(num_positions) + " positions, " +
                              std::to_string(num_velocities) + " velocities and an actuator, got " +
                              std::to_string(raw_->nq) + ", " + std::to_string(raw_->nv) + " and " +
                              std::to_string(raw_->nu));
}

namespace {

// A file with the contents that it had when a pool was made: a file that has changed is loaded again.
using FileKey = std::pair<std::string, std::string>;

struct Known {
  std::mutex mutex;
  std::string asset_folder;
  std::map<FileKey, std::weak_ptr<const Model>> models;
  // Between describing envs and building them, nothing else holds their models.
  std::set<SharedModel> recent;
};

// Never destroyed: a pool that lives until the process ends releases its models after statics are gone.
Known& known() {
  static Known& all = *new Known;
  return all;
}

constexpr std::size_t kMostKept = 8;

}  // namespace

SharedModel shared_model(const std::string& xml_file, const std::string& stamp) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  const std::string path = xml_file.starts_with('/') ? xml_file : all.asset_folder + "/" + xml_file;
  const FileKey key{path, stamp};
  SharedModel model;
  if (const auto found = all.models.find(key); found != all.models.end()) model = found->second.lock();
  if (model == nullptr) {
    model = std::make_shared<const Model>(path, path.starts_with(all.asset_folder + "/"));
    std::erase_if(all.models, [](const auto& entry) { return entry.second.expired(); });
    all.models[key] = model;
  }
  if (all.recent.size() > kMostKept) all.recent.clear();
  all.recent.insert(model);
  return model;
}

void keep_for_rebuild(SharedModel model) {
  thread_local SharedModel kept;
  kept = std::move(model);
}

void set_asset_folder(const char* folder) {
  const std::lock_guard lock(known().mutex);
  known().asset_folder = folder;
}

}  // namespace envfleet::mujoco
