// The rows of a batch: the env of each row, and where its bytes are in each column.
#pragma once

#include <bit>
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

// Whether each id is the one before it plus 1. Any values: ids need not be checked before.
inline bool is_consecutive(const std::int32_t* ids, std::int64_t count) {
  std::uint32_t differences = 0;  // collected bits and no test per id, so that the loop becomes vector instructions
  for (std::int64_t i = 0; i < count; ++i) {
    differences |= static_cast<std::uint32_t>(ids[i]) ^ (static_cast<std::uint32_t>(ids[0]) + static_cast<std::uint32_t>(i));
  }
  return differences == 0;
}

// With more envs than this, what an env uses once per episode is no longer in the second-level cache when it is needed.
constexpr std::int32_t kMaxCachedEnvs = 4096;

// Rows that are handled together: the bits of one word, and enough for vector instructions.
constexpr int kGroupRows = 64;

// Which of up to kGroupRows rows have one of two flags set, one bit per row. Flags are 0 or 1.
inline std::uint64_t mask_of(const std::uint8_t* flags, const std::uint8_t* other_flags, std::int64_t count) {
  std::uint64_t mask = 0;
  std::int64_t i = 0;
  if constexpr (std::endian::native == std::endian::little) {
    for (; i + 8 <= count; i += 8) {
      std::uint64_t eight, others;
      std::memcpy(&eight, flags + i, 8);
      std::memcpy(&others, other_flags + i, 8);
      // The product moves the eight of them side by side into the highest byte.
      mask |= (((eight | others) * 0x0102040810204080u) >> 56) << i;
    }
  }
  for (; i < count; ++i) mask |= static_cast<std::uint64_t>((flags[i] | other_flags[i]) & 1) << i;
  return mask;
}

}  // namespace detail

}  // namespace envfleet

#pragma GCC visibility pop
