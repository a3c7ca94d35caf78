#include "engine/env_types.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cfenv>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>

#include "envfleet/env_type.h"

namespace envfleet::engine {

namespace {

std::mutex types_mutex;

// The types of each id in the order in which they were registered, never empty: the last one counts.
using Types = std::map<std::string, std::vector<const ef_env_type*>>;

Types& types() {
  static Types by_id = [] {
    Types built_in;
    for (const ef_env_type* type : detail::local_types()) built_in[type->id] = {type};
    return built_in;
  }();
  return by_id;
}

// The types that never block. Guarded by types_mutex.
std::set<const ef_env_type*>& nonblocking_types() {
  static std::set<const ef_env_type*> known(detail::local_types().begin(), detail::local_types().end());
  return known;
}

// As Gymnasium takes ids: letters, digits and _:.- with at most one namespace before a slash.
bool is_valid_id(const std::string& id) {
  const auto is_allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::strchr("_:.-/", c) != nullptr;
  };
  return !id.empty() && id.front() != '/' && id.back() != '/' && std::count(id.begin(), id.end(), '/') <= 1 &&
         std::all_of(id.begin(), id.end(), is_allowed);
}

}  // namespace

const ef_env_type* find_env_type(const std::string& id) {
  std::lock_guard lock(types_mutex);
  const auto found = types().find(id);
  return found == types().end() ? nullptr : found->second.back();
}

std::vector<std::string> list_env_types() {
  std::lock_guard lock(types_mutex);
  std::vector<std::string> ids;
  for (const auto& [id, registered] : types()) ids.push_back(id);
  return ids;
}

std::vector<std::string> built_in_ids() {
  std::vector<std::string> ids;
  for (const ef_env_type* type : detail::local_types()) ids.emplace_back(type->id);
  return ids;
}

std::vector<std::string> load_plugin(const std::string& path, bool may_block) {
  // A library that was linked with -ffast-math makes this thread flush subnormal numbers to zero.
  std::fenv_t environment;
  std::fegetenv(&environment);
  // Local: two plug-ins may well define structs of the same name.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  std::fesetenv(&environment);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto entry = reinterpret_cast<ef_plugin_entry>(dlsym(library, ENVFLEET_PLUGIN_SYMBOL));
  if (entry == nullptr) {
    throw std::runtime_error(path + " exports no " ENVFLEET_PLUGIN_SYMBOL
                                    ": expected a library whose source includes envfleet/env.h");
  }
  const ef_plugin* plugin = entry();
  const bool is_same_version = plugin->abi_version == ENVFLEET_ABI_VERSION;
  // Behind the version lies the layout in this version alone.
  const std::uint64_t layout = is_same_version ? plugin->layout : 0;
  const std::string mismatch = detail::abi_mismatch(plugin->abi_version, layout, ENVFLEET_ABI_VERSION, ENVFLEET_ABI_LAYOUT);
  if (!mismatch.empty()) throw std::runtime_error(mismatch);
  if (plugin->num_types == 0) throw std::runtime_error(path + " registers no env: add ENVFLEET_ENV(\"MyEnv-v0\", MyEnv)");
  for (std::uint32_t i = 0; i < plugin->num_types; ++i) {
    if (!is_valid_id(plugin->types[i]->id)) {
      throw std::runtime_error(std::string("the id \"") + plugin->types[i]->id +
                               "\" expected letters, digits and _:.- such as MyEnv-v0");
    }
  }
  for (std::uint32_t i = 0; i < plugin->num_types; ++i) {
    for (std::uint32_t other = 0; other < i; ++other) {
      if (std::string(plugin->types[i]->id) == plugin->types[other]->id) {
        throw std::runtime_error(path + " registers " + plugin->types[i]->id + " twice: expected an id for each env");
      }
    }
  }
  std::lock_guard lock(types_mutex);
  std::vector<std::string> ids;
  for (std::uint32_t i = 0; i < plugin->num_types; ++i) {
    types()[plugin->types[i]->id].push_back(plugin->types[i]);
    if (!may_block) nonblocking_types().insert(plugin->types[i]);
    ids.emplace_back(plugin->types[i]->id);
  }
  return ids;
}

bool may_block(const ef_env_type& type) {
  std::lock_guard lock(types_mutex);
  return !nonblocking_types().contains(&type);
}

void withdraw_types(const std::vector<std::string>& ids) {
  std::lock_guard lock(types_mutex);
  for (const std::string& id : ids) {
    const auto found = types().find(id);
    if (found == types().end()) continue;
    found->second.pop_back();
    if (found->second.empty()) types().erase(found);
  }
}

}  // namespace envfleet::engine
