// BoardIds: the envs that a call of a board names.
//
// Used by the board's caller only, with the GIL held.
// Invariant: the ids that were accepted last are distinct, in range, and were idle.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "desk.h"
#include "given_arrays.h"

namespace envfleet::bindings {

class BoardIds {
 public:
  explicit BoardIds(std::int32_t num_envs) : num_envs_(num_envs), stamps_(num_envs, 0) {}

  // The ids become those of this call. None: all envs. False: not plainly right; the old ones stay.
  bool accept(const rows::Desk& desk, nanobind::handle given) {
    if (given.is_none()) {
      if (desk.num_in_flight() != 0) return false;
      take_all();
      return true;
    }
    const GivenIds ids = read_ids(given);
    if (ids.data == nullptr) return false;
    if (++stamp_ == 0) {  // wrapped: old stamps would look new
      std::fill(stamps_.begin(), stamps_.end(), 0);
      stamp_ = 1;
    }
    for (std::int64_t i = 0; i < ids.count; ++i) {
      const std::int32_t id = ids.data[i];
      if (id < 0 || id >= num_envs_ || stamps_[id] == stamp_ || desk.is_in_flight(id)) return false;
      stamps_[id] = stamp_;
    }
    list_.assign(ids.data, ids.data + ids.count);
    has_all_ = is_whole_ = false;
    return true;
  }

  const std::vector<std::int32_t>& list() const { return list_; }
  std::int64_t count() const { return std::ssize(list_); }
  // All envs in their own order, since none were named.
  bool is_whole() const { return is_whole_; }

 private:
  void take_all() {
    is_whole_ = true;
    if (has_all_) return;
    list_.resize(num_envs_);
    for (std::int32_t env_id = 0; env_id < num_envs_; ++env_id) list_[env_id] = env_id;
    has_all_ = true;
  }

  std::int32_t num_envs_;
  std::vector<std::int32_t> list_;
  bool is_whole_ = false, has_all_ = false;
  std::vector<std::uint32_t> stamps_;
  std::uint32_t stamp_ = 0;
};

}  // namespace envfleet::bindings
