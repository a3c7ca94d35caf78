// Model: a compiled MuJoCo model, shared by all envs that were given the same XML file.
//
// Thread safety: any thread may ask for one; a model never changes after it was loaded.
#pragma once

#include <mujoco/mujoco.h>

#include <memory>
#include <string>

namespace envfleet::mujoco {

class Model {
 public:
  // is_own: one of Gymnasium's models; MuJoCo's warnings about it are not shown, since the user cannot fix them.
  Model(const std::string& path, bool is_own);
  ~Model() { mj_deleteModel(raw_); }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const mjModel* operator->() const { return raw_; }
  const mjModel* raw() const { return raw_; }
  const std::string& path() const { return path_; }

  // The id of a body; throws if the model has no body with this name.
  int body(const char* name) const;
  // Throws unless the model has at least this many positions and velocities.
  void expect_sizes(int num_positions, int num_velocities) const;

 private:
  std::string path_;
  mjModel* raw_ = nullptr;
};

using SharedModel = std::shared_ptr<const Model>;

// xml_file: a path, or the name of one of Gymnasium's files. stamp: identifies the contents of the file, and of the files
// that it refers to, when the pool was made (envfleet/families/mujoco/model_files.py); empty for Gymnasium's files.
SharedModel shared_model(const std::string& xml_file, const std::string& stamp);

// Keeps the model of the env that this thread destroyed last. An env that is rebuilt requests its model right after it was
// destroyed, and must get the shapes that its pool has, even if the file has changed.
void keep_for_rebuild(SharedModel model);

// The folder of Gymnasium's model files.
void set_asset_folder(const char* folder);

}  // namespace envfleet::mujoco
