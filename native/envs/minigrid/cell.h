// Cell: what lies on one square of a MiniGrid world, in 32 bits.
//
// The three lowest bytes are the package's encoding of a square (type, color, state), in the order in which an
// observation holds them. The highest byte is for the rules alone: what a box contains, whether the object is the one
// that the task asks for, and whether it blocks the view.
//
// Invariant: a cell's opaque bit says what its type and state say; make() and with_state() see to it.
#pragma once

#include <cstdint>

namespace minigrid {

using Cell = std::uint32_t;

enum Type : std::uint32_t {
  kUnseen,
  kEmptyType,
  kWallType,
  kFloorType,
  kDoor,
  kKey,
  kBall,
  kBox,
  kGoalType,
  kLavaType,
  kAgent
};
enum Color : std::uint32_t { kRed, kGreen, kBlue, kPurple, kYellow, kGrey };
enum DoorState : std::uint32_t { kOpen, kClosed, kLocked };

inline constexpr int kNumColors = 6;
inline constexpr Cell kEncoded = 0x00FFFFFF;
inline constexpr Cell kOpaque = 0x80000000;
inline constexpr Cell kTarget = 0x40000000;  // the object that the task asks for
inline constexpr int kContentsShift = 24;    // of a box: the color of the key inside, plus one
inline constexpr Cell kContents = 0x07000000;

// The package draws colors from their sorted names: blue, green, grey, purple, red, yellow.
inline constexpr Color kColorsByName[kNumColors] = {kBlue, kGreen, kGrey, kPurple, kRed, kYellow};
// Where a color stands among them.
inline constexpr int kNameRanks[kNumColors] = {4, 1, 0, 3, 5, 2};

constexpr Cell make(std::uint32_t type, std::uint32_t color, std::uint32_t state = 0) {
  const bool is_opaque = type == kWallType || (type == kDoor && state != kOpen);
  return type | color << 8 | state << 16 | (is_opaque ? kOpaque : 0);
}

inline constexpr Cell kEmpty = make(kEmptyType, 0);
inline constexpr Cell kWall = make(kWallType, kGrey);
inline constexpr Cell kGoal = make(kGoalType, kGreen);
inline constexpr Cell kLava = make(kLavaType, kRed);

constexpr std::uint32_t type_of(Cell cell) { return cell & 0xFF; }
constexpr std::uint32_t color_of(Cell cell) { return cell >> 8 & 0xFF; }
constexpr std::uint32_t state_of(Cell cell) { return cell >> 16 & 0xFF; }

constexpr bool is_open_door(Cell cell) { return type_of(cell) == kDoor && state_of(cell) == kOpen; }
constexpr bool can_pick_up(Cell cell) { return type_of(cell) >= kKey && type_of(cell) <= kBox; }
// Whether the agent may stand there.
constexpr bool can_enter(Cell cell) {
  const std::uint32_t type = type_of(cell);
  return type == kEmptyType || type == kGoalType || type == kLavaType || type == kFloorType || is_open_door(cell);
}

constexpr Cell box_with_key(std::uint32_t box_color, std::uint32_t key_color) {
  return make(kBox, box_color) | (key_color + 1) << kContentsShift;
}

// What a box leaves behind when it is opened.
constexpr Cell contents_of(Cell box) {
  const std::uint32_t color = (box & kContents) >> kContentsShift;
  return color == 0 ? kEmpty : make(kKey, color - 1);
}

// Whether the bits are those of a cell that the rules can make; for states that come from outside.
constexpr bool is_valid(Cell cell) {
  const std::uint32_t type = type_of(cell), color = color_of(cell), state = state_of(cell);
  const std::uint32_t contents = (cell & kContents) >> kContentsShift;
  if (type < kEmptyType || type > kLavaType || color >= kNumColors || contents > kNumColors) return false;
  if (state > (type == kDoor ? std::uint32_t{kLocked} : 0) || (contents != 0 && type != kBox)) return false;
  return (cell & ~(kTarget | kContents)) == make(type, color, state);
}

}  // namespace minigrid
