// Out: where an env writes its row. Frame: where it writes its picture.
//
// Thread safety: an Out or Frame belongs to the call that receives it.
// Invariant: obs<T>() and info<T>() check T against the declared dtype, so a wrong type is an exception that names the
// column, never a write past the row.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "envfleet/abi.h"
#include "envfleet/spec.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

namespace detail {

struct Column {
  std::int64_t row_bytes = 0;
  std::int32_t dtype = 0;
  std::string name;
};

inline std::vector<Column> columns_of(const ef_array* arrays, std::int32_t count) {
  std::vector<Column> columns;
  for (std::int32_t i = 0; i < count; ++i) {
    std::int64_t bytes = size_of(arrays[i].dtype);
    for (std::int32_t axis = 0; axis < arrays[i].ndim; ++axis) bytes *= arrays[i].shape[axis];
    columns.push_back({bytes, arrays[i].dtype, arrays[i].name});
  }
  return columns;
}

[[noreturn]] inline void throw_wrong_column(const char* what, int index, std::int32_t dtype,
                                            const std::vector<Column>& columns) {
  const std::string call = "out." + std::string(what) + "<" + type_name(dtype) + ">(" + std::to_string(index) + ")";
  if (static_cast<std::size_t>(index) >= columns.size()) {
    throw std::logic_error(call + " does not match spec(), which declares " + std::to_string(columns.size()) + " " + what +
                           " columns, numbered from 0");
  }
  throw std::logic_error(call + " does not match spec(), which declares " + type_name(columns[index].dtype) + ", not " +
                         type_name(dtype));
}

}  // namespace detail

class Out {
 public:
  double reward = 0.0;
  bool terminated = false;
  bool truncated = false;  // besides max_episode_steps, which the engine enforces

  // The row of observation array k, in the order of spec().
  template <class T>
  T* obs(int k = 0) {
    return row<T>("obs", *obs_columns_, rows_->obs, k);
  }
  // The number of elements of that row.
  std::int64_t obs_size(int k = 0) const {
    const detail::Column& column = obs_columns_->at(static_cast<std::size_t>(k));
    return column.row_bytes / size_of(column.dtype);
  }
  // The row of info column k, in the order of spec().
  template <class T>
  T* info(int k = 0) {
    return row<T>("info", *info_columns_, rows_->info, k);
  }

  // The value from reset(options={name: value}). Only declared names are accepted there.
  double option(const char* name, double fallback) const {
    for (std::int64_t i = 0; i < rows_->num_options; ++i) {
      if (std::strcmp(rows_->options[i].name, name) == 0) return rows_->options[i].value;
    }
    return fallback;
  }

  // For the engine: row `row` of a batch.
  Out(const ef_rows* rows, const std::vector<detail::Column>* obs_columns, const std::vector<detail::Column>* info_columns,
      std::int64_t row)
      : rows_(rows), obs_columns_(obs_columns), info_columns_(info_columns), row_(row) {}

 private:
  template <class T>
  T* row(const char* what, const std::vector<detail::Column>& columns, void* const* base, int k) {
    if (static_cast<std::size_t>(k) >= columns.size() || columns[k].dtype != dtype_of<T>()) [[unlikely]] {
      detail::throw_wrong_column(what, k, dtype_of<T>(), columns);
    }
    return reinterpret_cast<T*>(static_cast<char*>(base[k]) + row_ * columns[k].row_bytes);
  }

  const ef_rows* rows_;
  const std::vector<detail::Column>* obs_columns_;
  const std::vector<detail::Column>* info_columns_;
  std::int64_t row_;
};

// The picture that render() draws: height * width * 3 bytes, RGB, rows from top to bottom.
struct Frame {
  std::int32_t height = 0;
  std::int32_t width = 0;
  std::vector<std::uint8_t> rgb;

  void resize(std::int32_t new_height, std::int32_t new_width, std::uint8_t fill = 0) {
    if (new_height <= 0 || new_width <= 0) {
      throw std::invalid_argument("Frame::resize expected a positive height and width, got " + std::to_string(new_height) +
                                  " x " + std::to_string(new_width));
    }
    height = new_height;
    width = new_width;
    rgb.assign(static_cast<std::size_t>(new_height) * new_width * 3, fill);
  }
  std::uint8_t* pixel(std::int32_t y, std::int32_t x) {
#ifdef ENVFLEET_DEBUG
    if (y < 0 || y >= height || x < 0 || x >= width) {
      throw std::out_of_range("Frame::pixel expected a pixel of " + std::to_string(height) + " x " + std::to_string(width) +
                              ", got (" + std::to_string(y) + ", " + std::to_string(x) + ")");
    }
#endif
    return &rgb[(static_cast<std::size_t>(y) * width + x) * 3];
  }
};

namespace detail {

// Throws if a frame is empty, or if its number of bytes does not match its height and width.
inline void check_frame(const Frame& frame) {
  const bool is_sized = frame.height > 0 && frame.width > 0;
  // At most 3 * 2**62, which 64 bits hold.
  const std::uint64_t expected = is_sized ? std::uint64_t{3} * frame.height * frame.width : 0;
  if (is_sized && frame.rgb.size() == expected) return;
  throw std::invalid_argument("render() expected a frame of positive height and width with height * width * 3 bytes, got " +
                              std::to_string(frame.height) + " x " + std::to_string(frame.width) + " with " +
                              std::to_string(frame.rgb.size()) + " bytes; Frame::resize sets all three");
}

}  // namespace detail

}  // namespace envfleet

#pragma GCC visibility pop
