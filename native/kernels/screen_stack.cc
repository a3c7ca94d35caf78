#include "kernels/screen_stack.h"

#include <algorithm>
#include <cstring>

#include "kernels/screen_stack_simd.h"

namespace envfleet::kernels {

namespace {

ResizeWeights weights_of_axis(const ScreenFormat& format, bool is_rows) {
  const bool may_grow = format.height > format.raw_height || format.width > format.raw_width;
  return is_rows ? make_resize_weights(format.raw_height, format.height, format.resize, may_grow)
                 : make_resize_weights(format.raw_width, format.width, format.resize, may_grow);
}

std::size_t product(std::initializer_list<int> factors) {
  std::size_t result = 1;
  for (const int factor : factors) result *= static_cast<std::size_t>(factor);
  return result;
}

}  // namespace

ScreenStack::ScreenStack(const ScreenFormat& format, const std::uint8_t* palette, bool may_use_simd)
    : format_(format),
      palette_(palette, palette + product({256, format.num_planes})),
      raw_bytes_(product({format.raw_height, format.raw_width})),
      pooled_(raw_bytes_ * format.num_planes),
      stack_bytes_(product({format.num_frames, format.num_planes, format.height, format.width})),
      own_stack_(stack_bytes_),
      stack_(own_stack_.data()),
      is_changed_(product({format.num_planes, format.raw_height})),
      rows_(weights_of_axis(format, true)),
      columns_(weights_of_axis(format, false)),
      divide_(rows_.total * columns_.total),
      line_(static_cast<std::size_t>(format.raw_width)) {
  if (may_use_simd) simd_ = make_simd(format_, palette_.data(), rows_, columns_);
}

std::uint8_t* ScreenStack::screen(int which) const {
  thread_local std::vector<std::uint8_t> screens;
  if (screens.size() < 2 * raw_bytes_) screens.resize(2 * raw_bytes_);
  return screens.data() + raw_bytes_ * which;
}

void ScreenStack::move_stack(std::uint8_t* memory) {
  if (memory == nullptr) memory = own_stack_.data();
  if (memory == stack_) return;
  std::memcpy(memory, stack_, stack_bytes_);
  stack_ = memory;
}

void ScreenStack::push(Shown shown, bool is_first) {
  const std::size_t frame_bytes = product({format_.num_planes, format_.height, format_.width});
  const std::size_t older_bytes = stack_bytes_ - frame_bytes;
  std::uint8_t* newest = stack_ + older_bytes;
  // The newest frame stays in its place too: what has not changed is there already.
  if (!is_first) std::memmove(stack_, stack_ + frame_bytes, older_bytes);
  if (shown != Shown::kNothing && shown != Shown::kPooled) color(shown);
  if (is_first || shown == Shown::kPooled) std::fill(is_changed_.begin(), is_changed_.end(), 1);
  if (is_first || shown != Shown::kNothing) shrink(newest);
  if (!is_first) return;
  for (std::uint8_t* frame = stack_; frame != newest; frame += frame_bytes) std::memcpy(frame, newest, frame_bytes);
}

void ScreenStack::color(Shown shown) {
  std::uint8_t* target = pooled_.data();
  std::uint8_t* is_changed = is_changed_.data();
  for (int plane = 0; plane < format_.num_planes; ++plane) {
    if (simd_ != nullptr) {
      simd_color(*simd_, plane, shown, screen(0), screen(1), target, is_changed);
      target += raw_bytes_;
      is_changed += format_.raw_height;
      continue;
    }
    for (int y = 0; y < format_.raw_height; ++y, target += format_.raw_width) {
      *is_changed++ = color_line(plane, y, shown, target) ? 1 : 0;
    }
  }
}

bool ScreenStack::color_line(int plane, int y, Shown shown, std::uint8_t* target) {
  const std::uint8_t* palette = palette_.data() + 256 * plane;
  const std::size_t begin = product({y, format_.raw_width});
  const std::uint8_t* last = screen(0) + begin;
  const std::uint8_t* before = screen(1) + begin;
  std::uint8_t difference = 0;
  for (int x = 0; x < format_.raw_width; ++x) {
    std::uint8_t color;
    if (shown == Shown::kLast) {
      color = palette[last[x]];
    } else if (shown == Shown::kBoth) {
      color = std::max(palette[last[x]], palette[before[x]]);
    } else {
      color = std::max(target[x], palette[before[x]]);
    }
    difference |= color ^ target[x];
    target[x] = color;
  }
  return difference != 0;
}

void ScreenStack::shrink(std::uint8_t* frame) {
  const bool is_full_size = format_.height == format_.raw_height && format_.width == format_.raw_width;
  for (int plane = 0; plane < format_.num_planes; ++plane) {
    const std::uint8_t* pixels = pooled_.data() + raw_bytes_ * plane;
    const std::uint8_t* is_changed = is_changed_.data() + format_.raw_height * plane;
    for (int y = 0; y < format_.height; ++y, frame += format_.width) {
      const std::uint8_t* first = is_changed + rows_.first[y];
      const std::uint8_t* end = std::min(first + rows_.max_count, is_changed + format_.raw_height);
      if (std::find(first, end, 1) == end) continue;
      if (is_full_size) {
        std::memcpy(frame, pixels + product({y, format_.raw_width}), static_cast<std::size_t>(format_.width));
      } else if (simd_ != nullptr && simd_shrinks(*simd_)) {
        simd_shrink_line(*simd_, pixels, y, frame);
      } else {
        shrink_line(pixels, y, frame);
      }
    }
  }
}

void ScreenStack::shrink_line(const std::uint8_t* pixels, int y, std::uint8_t* target) {
  // First the lines are added up, which a compiler vectorises; then the columns.
  const int raw_width = format_.raw_width;
  std::fill(line_.begin(), line_.end(), 0);
  const std::uint32_t* weights = rows_.weights_of(y);
  for (int k = 0; k < rows_.max_count; ++k) {
    if (weights[k] == 0) continue;  // it may lie past the edge
    const std::uint8_t* source = pixels + static_cast<std::size_t>(rows_.first[y] + k) * raw_width;
    for (int x = 0; x < raw_width; ++x) line_[x] += weights[k] * source[x];
  }
  for (int x = 0; x < format_.width; ++x) {
    const std::uint32_t* own = columns_.weights_of(x);
    const std::uint32_t* source = line_.data() + columns_.first[x];
    std::uint32_t sum = 0;
    for (int k = 0; k < columns_.max_count; ++k) {
      if (own[k] != 0) sum += own[k] * source[k];
    }
    target[x] = static_cast<std::uint8_t>(divide_(sum));
  }
}

}  // namespace envfleet::kernels
