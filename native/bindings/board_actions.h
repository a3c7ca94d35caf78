// BoardActions: takes actions that are right as they are into the board's column of them.
//
// Used by the board's caller only, with the GIL held.
// Invariant: only the rows of the envs that are named are written.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

#include "action_space.h"
#include "checks.h"
#include "given_arrays.h"
#include "row_columns.h"

namespace envfleet::bindings {

class BoardActions {
 public:
  // space: None for actions that are not one array; they are the Python layer's to store.
  BoardActions(nanobind::object column, nanobind::handle space) {
    if (!space.is_none()) parts_.emplace(column, nanobind::cast<nanobind::dict>(space));
  }

  // False: not plainly right. env_ids null: row i is for env i.
  bool accept(nanobind::handle given, const std::int32_t* env_ids, std::int64_t count) const {
    if (!parts_) return false;
    const GivenActions actions = read_actions(given, parts_->space.array, count);
    if (actions.dtype < 0 || !parts_->store.takes(actions.dtype)) return false;
    return parts_->store.store({parts_->column.row(0), parts_->column.row_bytes()}, actions.data, actions.dtype, env_ids,
                               count);
  }

 private:
  struct Parts {
    Parts(nanobind::object given_column, nanobind::dict given_space)
        : column(given_column), space(given_space), store(space.array, true) {}
    RowColumn column;
    ActionSpace space;
    engine::ActionStore store;
  };
  std::optional<Parts> parts_;
};

}  // namespace envfleet::bindings
