// Called by envfleet/envs/mujoco_plugin.py before it registers the envs.
#include "envfleet/env.h"
#include "model.h"

// 0: the loaded library is the one that this was built against. Structs differ between versions.
ENVFLEET_EXPORT int envfleet_mujoco_start(const char* asset_folder) {
  if (mj_version() != mjVERSION_HEADER) return mj_version();
  envfleet::mujoco::set_asset_folder(asset_folder);
  return 0;
}
