// KeptColumn: a column of observations with two copies of it, for pools that restart envs.
//
// Of each env, one copy holds the last observation that it delivered (Slot::last_copy). The worker copies a finished row
// into the other one, while it is still in its cache, and the caller switches when it collects the row. The row itself
// would not do: an env that raises, or a worker that is killed, leaves it half overwritten, and with copy=False it is the
// array that the user got, who may write to it.
//
// Thread safety: as of a slot (shm/segment.h): the worker's from the request until its row is finished, else the caller's.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "bindings/numpy_arrays.h"
#include "shm/segment.h"

namespace envfleet::bindings {

class KeptColumn {
 public:
  // [column, one copy, other copy]: arrays of the same shape and dtype.
  explicit KeptColumn(nanobind::handle given) : rows_(given[0]), copies_{Column(given[1]), Column(given[2])} {}
  static std::vector<KeptColumn> read(nanobind::list given) { return {given.begin(), given.end()}; }

  // By the worker: keeps a finished row, which becomes the last one if the caller collects it.
  void keep(const shm::Slot& slot, std::int32_t env_id) const { move(rows_, copies_[~slot.last_copy & 1], env_id); }
  // By the caller: makes the last observation the row.
  void restore(const shm::Slot& slot, std::int32_t env_id) const { move(copies_[slot.last_copy & 1], rows_, env_id); }

 private:
  static void move(const Column& from, const Column& to, std::int32_t env_id) {
    std::memcpy(to.row(env_id), from.row(env_id), static_cast<std::size_t>(from.row_bytes()));
  }

  Column rows_;
  std::array<Column, 2> copies_;
};

}  // namespace envfleet::bindings
