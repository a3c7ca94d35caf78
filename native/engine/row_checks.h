// RowChecks: finds rewards and observations that are NaN or infinite in the rows that native envs have written, for
// check_finite.
//
// Thread safety: const functions only, from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "envfleet/abi.h"

namespace envfleet::engine {

class RowChecks {
 public:
  // What is wrong with a row. method: what the env did then, EF_IN_RESET or EF_IN_STEP.
  struct Finding {
    ef_method method = EF_IN_STEP;
    char what[ENVFLEET_ERROR_SIZE] = "";  // empty: nothing
  };

  RowChecks(const ef_spec& spec, bool with_finals);

  // Whether rows begin to end - 1 hold nothing that find() reports. Final rows are not looked at.
  bool accepts(const ef_rows& rows, std::int64_t begin, std::int64_t end) const;
  // Whether a row ended an episode, so that its final row was written.
  bool has_final(const ef_rows& rows, std::int64_t row) const {
    return with_finals_ && (rows.terminated[row] | rows.truncated[row]) != 0;
  }
  bool has_finals() const { return with_finals_; }
  Finding find(const ef_rows& rows, std::int64_t row) const;

  // Makes a row the one of an env that has raised.
  void clear(const ef_rows& rows, std::int64_t row, ef_method method) const;

 private:
  struct Column {
    const ef_array* array;
    std::int64_t num_elements;
    std::int64_t row_bytes;
  };
  static std::vector<Column> columns_of(const ef_array* arrays, std::int32_t count);
  bool find_in(void* const* base, std::int64_t row, char* what) const;

  const ef_structure structure_;
  const bool with_finals_;
  const std::vector<Column> obs_, info_;
};

}  // namespace envfleet::engine
