// The env types of this process: the built-in ones and those of loaded plug-ins.
//
// Thread safety: all functions from any thread.
// Invariant: a type that was returned stays valid; plug-ins are never unloaded.
#pragma once

#include <string>
#include <vector>

#include "envfleet/abi.h"

namespace envfleet::engine {

// Null if no type has this id. A plug-in that is loaded later overrides an earlier one.
const ef_env_type* find_env_type(const std::string& id);
std::vector<std::string> list_env_types();
std::vector<std::string> built_in_ids();

// Loads a shared library and returns the ids of its envs; throws std::runtime_error. may_block: false if no method of its
// envs ever waits for anything, which only the authors of envfleet's own libraries know.
std::vector<std::string> load_plugin(const std::string& path, bool may_block);

// Whether a method of this type may wait: for a file, a device, another thread. Its callers then hold no lock of others.
bool may_block(const ef_env_type& type);

// Takes back what load_plugin() registered last under these ids: each is again what it was before, or unknown.
void withdraw_types(const std::vector<std::string>& ids);

}  // namespace envfleet::engine
