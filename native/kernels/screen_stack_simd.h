// The parts of ScreenStack that are faster with AVX2, selected at run time. The results are the same.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/screen_stack.h"

namespace envfleet::kernels {

struct ScreenSimd;  // tables for one format; immutable, so threads may share it

// Null if this machine has no AVX2, or if the palette or the screen is not an Atari's.
std::shared_ptr<const ScreenSimd> make_simd(const ScreenFormat& format, const std::uint8_t* palette,
                                            const ResizeWeights& rows, const ResizeWeights& columns);

// One plane of colors at full size, and which of its lines have changed.
void simd_color(const ScreenSimd& simd, int plane, Shown shown, const std::uint8_t* last, const std::uint8_t* before,
                std::uint8_t* target, std::uint8_t* is_changed);

// Whether it supports resizing to this format: sums must fit into 16 bits, as for 210x160 to 84x84.
bool simd_shrinks(const ScreenSimd& simd);
void simd_shrink_line(const ScreenSimd& simd, const std::uint8_t* pixels, int y, std::uint8_t* target);

}  // namespace envfleet::kernels
