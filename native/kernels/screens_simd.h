// The parts of ScreenStack that AVX2 does faster, chosen at run time. Same sums, same pictures.
#pragma once

#include <cstdint>
#include <memory>

#include "screens.h"

namespace envfleet::kernels {

struct ScreenSimd;  // tables for one format; never changes, so that threads may share it

// Null: this machine has no AVX2, or the palette or the screen is none of an Atari's.
std::shared_ptr<const ScreenSimd> make_simd(const ScreenFormat& format, const std::uint8_t* palette, const Taps& rows,
                                            const Taps& columns);

// One plane of colours at full size, and which of its lines have changed.
void simd_colour(const ScreenSimd& simd, int plane, Shown shown, const std::uint8_t* last, const std::uint8_t* before,
                 std::uint8_t* target, std::uint8_t* is_changed);

// Whether it resizes to this format: sums must fit into 16 bits, as 210x160 to 84x84 does.
bool simd_shrinks(const ScreenSimd& simd);
void simd_shrink_line(const ScreenSimd& simd, const std::uint8_t* pixels, int y, std::uint8_t* target);

}  // namespace envfleet::kernels
