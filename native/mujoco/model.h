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
  // is_own: the user can do nothing about what MuJoCo warns of.
  Model(const std::string& path, bool is_own);
  ~Model() { mj_deleteModel(raw_); }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const mjModel* operator->() const { return raw_; }
  const mjModel* raw() const { return raw_; }
  const std::string& path() const { return path_; }

  // The id of a body; throws when the model has none of that name.
  int body(const char* name) const;
  // Throws unless the model has at least so many positions and velocities.
  void expect_sizes(int num_positions, int num_velocities) const;

 private:
  std::string path_;
  mjModel* raw_ = nullptr;
};

using SharedModel = std::shared_ptr<const Model>;

// xml_file: a path, or the name of a file in the folder of Gymnasium's own. stamp: what the file, and what it names,
// was when the pool was made (envfleet/envs/mujoco_files.py); empty for Gymnasium's own.
SharedModel shared_model(const std::string& xml_file, const std::string& stamp);

// Holds the model of the env that this thread destroyed last. An env that is rebuilt must not find other
// shapes than its pool has, whatever its file is now: it is destroyed, and asks for its model right after.
void keep_for_rebuild(SharedModel model);

// The folder of Gymnasium's own files.
void set_asset_folder(const char* folder);

}  // namespace envfleet::mujoco
