// The rows of a batch: the env of each row, and where its bytes are in each column.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "envfleet/abi.h"
#include "envfleet/out.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

namespace detail {

// Without env_ids, row i belongs to env i.
inline std::int32_t env_of(const ef_rows& rows, std::int64_t row) {
  return rows.env_ids != nullptr ? rows.env_ids[row] : static_cast<std::int32_t>(row);
}

inline char* row_at(void* base, std::int64_t row_bytes, std::int64_t row) {
  return static_cast<char*>(base) + row_bytes * row;
}

inline void clear_rows(const std::vector<Column>& columns, void* const* base, std::int64_t first_row, int count) {
  for (std::size_t k = 0; k < columns.size(); ++k)
    std::memset(row_at(base[k], columns[k].row_bytes, first_row), 0, columns[k].row_bytes * count);
}

inline void copy_row(const std::vector<Column>& columns, void* const* to, void* const* from, std::int64_t row) {
  for (std::size_t k = 0; k < columns.size(); ++k) {
    std::memcpy(row_at(to[k], columns[k].row_bytes, row), row_at(from[k], columns[k].row_bytes, row), columns[k].row_bytes);
  }
}

}  // namespace detail

}  // namespace envfleet

#pragma GCC visibility pop
