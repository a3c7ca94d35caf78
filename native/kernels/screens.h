// ScreenStack: from an emulator's screens to the stack of frames that an agent sees.
//
//   two screens of palette indices -> colours -> maximum of the two -> resized -> the newest frame of the stack
//
// In whole numbers; with AVX2 where the machine has it, with the same result where it has not. Lines that did not
// change are not made again.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "taps.h"

namespace envfleet::kernels {

struct ScreenFormat {
  int raw_height, raw_width;
  int height, width;  // of a frame of the stack
  int num_planes;     // 1: grey, 3: red, green and blue, each a plane of its own
  int num_frames;
  Resize resize = Resize::kArea;
};

// What a frame shows of the two screens. The episode's end in the middle of a step leaves some of them out.
enum class Shown : std::uint8_t {
  kLast,     // the last screen alone
  kBoth,     // the maximum of both
  kBefore,   // the maximum of what was shown before and of the last screen but one
  kNothing,  // what was shown before
  kPooled,   // what somebody else has written to pooled()
};

struct ScreenSimd;

class ScreenStack {
 public:
  // palette: 256 values for each plane.
  ScreenStack(const ScreenFormat& format, const std::uint8_t* palette, bool may_use_simd = true);
  ScreenStack(const ScreenStack&) = delete;
  ScreenStack& operator=(const ScreenStack&) = delete;

  // Where the emulator's palette indices go: 0 is the last screen of a step, 1 the one before it. They belong to the
  // calling thread, whose envs take turns: a cache holds few screens, and a worker has many envs.
  std::uint8_t* screen(int which) const;
  // Oldest frame first, each its planes after one another.
  std::uint8_t* stack() { return stack_; }
  // Has the stack, as it stands, somewhere else from now on: in a row that is read by others. The memory must
  // outlive this, or the next call. Null: in its own.
  void move_stack(std::uint8_t* memory);
  // The colours at full size, of which the newest frame was made.
  std::uint8_t* pooled() { return pooled_.data(); }

  // Moves the frames up and makes the newest. is_first: an episode begins, and all frames are this one.
  void push(Shown shown, bool is_first);

  const ScreenFormat& format() const { return format_; }
  bool uses_simd() const { return simd_ != nullptr; }

 private:
  void colour(Shown shown);
  bool colour_line(int plane, int y, Shown shown, std::uint8_t* target);
  void shrink(std::uint8_t* frame);
  void shrink_line(const std::uint8_t* pixels, int y, std::uint8_t* target);

  ScreenFormat format_;
  std::vector<std::uint8_t> palette_;
  std::size_t raw_bytes_;
  std::vector<std::uint8_t> pooled_;
  std::size_t stack_bytes_;
  std::vector<std::uint8_t> own_stack_;  // stays where it is: arrays may show it still
  std::uint8_t* stack_;
  // The lines of pooled_, plane by plane, that have changed since the newest frame was made: most have not.
  std::vector<std::uint8_t> is_changed_;
  Taps rows_, columns_;
  Divider divide_;
  std::vector<std::uint32_t> line_;
  std::shared_ptr<const ScreenSimd> simd_;  // null: not here, or not for this format
};

}  // namespace envfleet::kernels
