// LastObservations: a copy of the last observation that each env delivered, for the rows of envs that throw.
//
// It is a copy because nothing else holds that observation: the arrays of earlier batches are the caller's, who may write
// to them, and an env that threw may be in any state.
//
// Thread safety: the observation of an env belongs to the thread that runs it, and between batches to the caller.
// Invariant: zeros for an env that has delivered none; a row that failed never gets in.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "engine/batch_buffer.h"
#include "envfleet/abi.h"
#include "envfleet/rows.h"

namespace envfleet::engine {

class LastObservations {
 public:
  LastObservations(const BatchLayout& layout, std::int32_t num_envs) {
    for (std::int64_t k = 0; k < layout.num_obs; ++k) {
      const std::int64_t bytes = layout.columns[layout.obs(k)].row_bytes;
      columns_.push_back({bytes, std::vector<char>(static_cast<std::size_t>(bytes) * num_envs)});
    }
  }

  // Copies the observations of rows begin to end - 1, none of which failed.
  void keep(const ef_rows& rows, std::int64_t begin, std::int64_t end) {
    for (; begin < end; begin += detail::kGroupRows) {
      // Without ids, all rows are consecutive envs.
      const std::int64_t count =
          rows.env_ids == nullptr ? end - begin : std::min<std::int64_t>(end - begin, detail::kGroupRows);
      if (rows.env_ids == nullptr || detail::is_consecutive(rows.env_ids + begin, count)) {
        copy(rows, begin, detail::env_of(rows, begin), count);
      } else {
        for (std::int64_t row = begin; row < begin + count; ++row) copy(rows, row, rows.env_ids[row], 1);
      }
      if (rows.env_ids == nullptr) return;
    }
  }

  // Writes the env's last observation into its row, which failed.
  void restore(const ef_rows& rows, std::int64_t row, std::int32_t env_id) const {
    for (std::size_t k = 0; k < columns_.size(); ++k) {
      const auto& [bytes, data] = columns_[k];
      std::memcpy(detail::row_at(rows.obs[k], bytes, row), data.data() + bytes * env_id, bytes);
    }
  }

  // The last observation of an env as bytes, to be saved with its state.
  void append_to(std::string& state, std::int32_t env_id) const {
    for (const auto& [bytes, data] : columns_) state.append(data.data() + bytes * env_id, bytes);
  }
  // given: what append_to() has appended.
  void load(std::int32_t env_id, std::string_view given) {
    for (auto& [bytes, data] : columns_) {
      std::memcpy(data.data() + bytes * env_id, given.data(), bytes);
      given.remove_prefix(bytes);
    }
  }
  void clear(std::int32_t env_id) {
    for (auto& [bytes, data] : columns_) std::memset(data.data() + bytes * env_id, 0, bytes);
  }

 private:
  struct KeptColumn {
    std::int64_t row_bytes;
    std::vector<char> data;
  };

  void copy(const ef_rows& rows, std::int64_t row, std::int32_t env_id, std::int64_t count) {
    for (std::size_t k = 0; k < columns_.size(); ++k) {
      auto& [bytes, data] = columns_[k];
      std::memcpy(data.data() + bytes * env_id, detail::row_at(rows.obs[k], bytes, row), bytes * count);
    }
  }

  std::vector<KeptColumn> columns_;
};

}  // namespace envfleet::engine
