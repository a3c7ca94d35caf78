// BoardBatches: rows of a board as the tuple of fresh arrays that Python makes a Batch of.
//
// Lives and dies with the GIL held; used by the board's caller only.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "desk.h"
#include "info_schema.h"
#include "row_columns.h"

namespace envfleet::bindings {

class BoardBatches {
 public:
  // obs, finals: the stored leaves of observations, and of last ones in same_step mode. copy: false for whole batches
  // that are views of the board. whole_ids: the array 0, 1, 2 ... that stands for env_id in a batch of all envs.
  BoardBatches(const rows::Desk& desk, nanobind::list obs, nanobind::list finals, nanobind::object info,
               nanobind::object whole_ids, bool copy, bool has_finals);

  // obs..., reward, terminated, truncated, env_id, elapsed_step, [final obs..., final elapsed_step], info or None,
  // final info or None, and None or the rows that need a look: (row, env_id, kind, reply_bytes). env_ids null: all.
  nanobind::object rows_of(const std::int32_t* env_ids, std::int64_t count);
  // The stored leaves of the last observations of all envs.
  nanobind::list observations() const;
  void load_schema(nanobind::list entries);

 private:
  // Also clears the observations of envs that were lost with their workers.
  nanobind::object rows_to_look_at(const std::int32_t* env_ids, std::int64_t count) const;
  void add_numbers(PyObject* tuple, Py_ssize_t first, const std::int32_t* env_ids, std::int64_t count) const;
  PyObject* unpack_info(const std::int32_t* env_ids, std::int64_t count, bool is_final) const;

  const rows::Desk& desk_;
  std::vector<RowColumn> obs_, finals_;
  RowColumn info_;
  InfoSchema schema_;
  nanobind::object whole_ids_;
  bool copy_, has_finals_;
};

}  // namespace envfleet::bindings
