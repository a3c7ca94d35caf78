// ScreenStack: from an emulator's screens to the stack of frames that an agent sees.
//
//   two screens of palette indices -> colors -> maximum of the two -> resized -> the newest frame of the stack
//
// In integer arithmetic, with AVX2 if the machine has it and with the same result otherwise. Lines that did not change
// are not computed again.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/resize_weights.h"

namespace envfleet::kernels {

struct ScreenFormat {
  int raw_height, raw_width;
  int height, width;  // of a frame of the stack
  int num_planes;     // 1: grayscale, 3: red, green and blue
  int num_frames;
  Resize resize = Resize::kArea;
};

// Which of the two screens a frame shows. If an episode ends in the middle of a step, some of them are missing.
enum class Shown : std::uint8_t {
  kLast,     // the last screen only
  kBoth,     // the maximum of both
  kBefore,   // the maximum of the previous frame and the last screen but one
  kNothing,  // the previous frame
  kPooled,   // what the caller has written to pooled()
};

struct ScreenSimd;

class ScreenStack {
 public:
  // palette: 256 values for each plane.
  ScreenStack(const ScreenFormat& format, const std::uint8_t* palette, bool may_use_simd = true);
  ScreenStack(const ScreenStack&) = delete;
  ScreenStack& operator=(const ScreenStack&) = delete;

  // Where the emulator writes its palette indices: 0 is the last screen of a step, 1 the one before it. The screens
  // belong to the calling thread and are shared by its envs: a cache holds few screens, and a worker has many envs.
  std::uint8_t* screen(int which) const;
  // Oldest frame first; the planes of a frame are contiguous.
  std::uint8_t* stack() { return stack_; }
  // Moves the stack, with its contents, to other memory, such as the row of a batch. The memory must live until the next
  // call or the end of this object. Null: moves it back to its own memory.
  void move_stack(std::uint8_t* memory);
  // The colors at full size from which the newest frame was made.
  std::uint8_t* pooled() { return pooled_.data(); }

  // Shifts the frames and makes the newest. is_first: an episode begins, and all frames are set to this one.
  void push(Shown shown, bool is_first);

  const ScreenFormat& format() const { return format_; }
  bool uses_simd() const { return simd_ != nullptr; }

 private:
  void color(Shown shown);
  bool color_line(int plane, int y, Shown shown, std::uint8_t* target);
  void shrink(std::uint8_t* frame);
  void shrink_line(const std::uint8_t* pixels, int y, std::uint8_t* target);

  ScreenFormat format_;
  std::vector<std::uint8_t> palette_;
  std::size_t raw_bytes_;
  std::vector<std::uint8_t> pooled_;
  std::size_t stack_bytes_;
  std::vector<std::uint8_t> own_stack_;  // never freed before this object: arrays may still refer to it
  std::uint8_t* stack_;
  // Which lines of pooled_, plane by plane, have changed since the newest frame was made: most have not.
  std::vector<std::uint8_t> is_changed_;
  ResizeWeights rows_, columns_;
  Divider divide_;
  std::vector<std::uint32_t> line_;
  std::shared_ptr<const ScreenSimd> simd_;  // null: not on this machine, or not for this format
};

}  // namespace envfleet::kernels
