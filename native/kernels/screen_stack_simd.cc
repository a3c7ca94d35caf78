#include "kernels/screen_stack_simd.h"

#if ENVFLEET_HAS_AVX2

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <vector>

#define ENVFLEET_AVX2 __attribute__((target("avx2")))

namespace envfleet::kernels {

namespace {

constexpr int kMaxWeights = 3;
constexpr int kLanes = 8;  // output pixels that one shuffle gathers
constexpr int kTables = 8;
constexpr int kMaxRawWidth = 320;

// Of eight output pixels next to each other: where tap k of each lies in 16 sums read from `base` on.
struct TapGroup {
  int base[kMaxWeights];
  alignas(16) std::uint8_t low[kMaxWeights][16];   // a shuffle of sums 0 to 7
  alignas(16) std::uint8_t high[kMaxWeights][16];  // and of 8 to 15
  alignas(16) std::uint16_t weight[kMaxWeights][kLanes];
};

struct LineWeights {
  int first, count;
  std::uint16_t weight[kMaxWeights];
};

}  // namespace

struct ScreenSimd {
  ScreenFormat format;
  // An Atari's colors are even numbers: 128 of them, in tables of 16 as a shuffle takes them.
  alignas(32) std::uint8_t tables[3][kTables][32];
  bool shrinks = false;
  std::vector<LineWeights> lines;
  std::vector<TapGroup> groups;  // an even number
  std::vector<int> starts;       // the first output pixel of each group
  // Division by the weights' total: (sum + half) >> before, times factor, >> 16 + after.
  std::uint16_t half, factor;
  int before, after;
};

namespace {

bool find_division(std::uint32_t total, ScreenSimd* simd) {
  const std::uint32_t highest = 255 * total + total / 2;
  if (highest > 65535) return false;
  const int before = std::countr_zero(total);
  const std::uint64_t divisor = total >> before;
  for (int after = 0; after < 16; ++after) {
    const std::uint64_t power = std::uint64_t{1} << (16 + after);
    const std::uint64_t factor = (power + divisor - 1) / divisor;
    // Exact while the error of the factor does not reach the next whole number.
    if (factor > 65535 || (highest >> before) * (factor * divisor - power) >= power) continue;
    simd->half = static_cast<std::uint16_t>(total / 2);
    simd->factor = static_cast<std::uint16_t>(factor);
    simd->before = before;
    simd->after = after;
    return true;
  }
  return false;
}

bool fill_group(const ResizeWeights& columns, int start, TapGroup* group) {
  for (int k = 0; k < kMaxWeights; ++k) {
    group->base[k] = columns.first[start] + k;
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::uint32_t weight = k < columns.max_count ? columns.weights_of(start + lane)[k] : 0;
      const int offset = columns.first[start + lane] + k - group->base[k];
      if (weight != 0 && (offset < 0 || offset > 15 || weight > 65535)) return false;
      group->weight[k][lane] = static_cast<std::uint16_t>(weight);
      for (int byte = 0; byte < 2; ++byte) {
        const int at = 2 * lane + byte;
        const auto position = static_cast<std::uint8_t>(2 * (offset & 7) + byte);
        group->low[k][at] = weight != 0 && offset < 8 ? position : 0x80;
        group->high[k][at] = weight != 0 && offset >= 8 ? position : 0x80;
      }
    }
  }
  return true;
}

bool plan_shrink(const ResizeWeights& rows, const ResizeWeights& columns, ScreenSimd* simd) {
  const ScreenFormat& format = simd->format;
  if (rows.max_count > kMaxWeights || columns.max_count > kMaxWeights) return false;
  if (format.raw_width > kMaxRawWidth || format.width < kLanes) return false;
  if (!find_division(rows.total * columns.total, simd)) return false;
  for (int y = 0; y < rows.size(); ++y) {
    LineWeights line{rows.first[y], rows.max_count, {}};
    std::copy_n(rows.weights_of(y), rows.max_count, line.weight);
    while (line.count > 1 && line.weight[line.count - 1] == 0) --line.count;  // what lies past the edge
    simd->lines.push_back(line);
  }
  for (int start = 0; start < format.width; start += kLanes) {
    simd->starts.push_back(std::min(start, format.width - kLanes));
  }
  if (simd->starts.size() % 2 != 0) simd->starts.push_back(simd->starts.back());
  for (const int start : simd->starts) {
    if (!fill_group(columns, start, &simd->groups.emplace_back())) return false;
  }
  return true;
}

ENVFLEET_AVX2 inline __m256i look_up(const __m256i* tables, __m256i screen) {
  // Bits 1 to 4 choose within a table, 5 to 7 among the tables.
  const __m256i index = _mm256_and_si256(_mm256_srli_epi16(screen, 1), _mm256_set1_epi8(0x7F));
  const __m256i bit4 = _mm256_slli_epi16(index, 3);
  const __m256i bit5 = _mm256_slli_epi16(index, 2);
  const __m256i bit6 = _mm256_slli_epi16(index, 1);
  __m256i pairs[4];
  for (int i = 0; i < 4; ++i) {
    pairs[i] =
        _mm256_blendv_epi8(_mm256_shuffle_epi8(tables[2 * i], index), _mm256_shuffle_epi8(tables[2 * i + 1], index), bit4);
  }
  return _mm256_blendv_epi8(_mm256_blendv_epi8(pairs[0], pairs[1], bit5), _mm256_blendv_epi8(pairs[2], pairs[3], bit5),
                            bit6);
}

ENVFLEET_AVX2 inline __m256i load(const std::uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

ENVFLEET_AVX2 inline void store(std::uint8_t* to, __m256i value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}

ENVFLEET_AVX2 inline __m256i two_halves(const std::uint16_t* low, const std::uint16_t* high) {
  return _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(high), reinterpret_cast<const __m128i*>(low));
}

ENVFLEET_AVX2 inline __m256i two_halves(const std::uint8_t* low, const std::uint8_t* high) {
  return _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(high), reinterpret_cast<const __m128i*>(low));
}

ENVFLEET_AVX2 void add_lines(const LineWeights& weights, const std::uint8_t* pixels, int raw_width, std::uint16_t* line) {
  for (int x = 0; x < raw_width; x += 16) {
    __m256i sum = _mm256_setzero_si256();
    for (int k = 0; k < weights.count; ++k) {
      const std::uint8_t* source = pixels + static_cast<std::size_t>(weights.first + k) * raw_width + x;
      const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
      sum = _mm256_add_epi16(sum, _mm256_mullo_epi16(wide, _mm256_set1_epi16(static_cast<short>(weights.weight[k]))));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(line + x), sum);
  }
}

ENVFLEET_AVX2 void add_columns(const ScreenSimd& simd, const std::uint16_t* line, std::uint8_t* target) {
  const __m256i half = _mm256_set1_epi16(static_cast<short>(simd.half));
  const __m256i factor = _mm256_set1_epi16(static_cast<short>(simd.factor));
  const __m128i before = _mm_cvtsi32_si128(simd.before);
  const __m128i after = _mm_cvtsi32_si128(simd.after);
  for (std::size_t i = 0; i < simd.groups.size(); i += 2) {
    const TapGroup& a = simd.groups[i];
    const TapGroup& b = simd.groups[i + 1];
    __m256i sum = half;
    for (int k = 0; k < kMaxWeights; ++k) {
      const __m256i low = two_halves(line + a.base[k], line + b.base[k]);
      const __m256i high = two_halves(line + a.base[k] + 8, line + b.base[k] + 8);
      const __m256i gathered = _mm256_or_si256(_mm256_shuffle_epi8(low, two_halves(a.low[k], b.low[k])),
                                               _mm256_shuffle_epi8(high, two_halves(a.high[k], b.high[k])));
      sum = _mm256_add_epi16(sum, _mm256_mullo_epi16(gathered, two_halves(a.weight[k], b.weight[k])));
    }
    const __m256i mean = _mm256_srl_epi16(_mm256_mulhi_epu16(_mm256_srl_epi16(sum, before), factor), after);
    const __m256i bytes = _mm256_packus_epi16(mean, mean);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(target + simd.starts[i]), _mm256_castsi256_si128(bytes));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(target + simd.starts[i + 1]), _mm256_extracti128_si256(bytes, 1));
  }
}

}  // namespace

std::shared_ptr<const ScreenSimd> make_simd(const ScreenFormat& format, const std::uint8_t* palette,
                                            const ResizeWeights& rows, const ResizeWeights& columns) {
  if (!__builtin_cpu_supports("avx2") || format.raw_width % 32 != 0) return nullptr;
  auto simd = std::make_shared<ScreenSimd>();
  simd->format = format;
  for (int plane = 0; plane < format.num_planes; ++plane) {
    for (int color = 0; color < 128; ++color) {
      const std::uint8_t value = palette[256 * plane + 2 * color];
      if (palette[256 * plane + 2 * color + 1] != value) return nullptr;
      // Twice: a shuffle knows each half of a register alone.
      simd->tables[plane][color / 16][color % 16] = value;
      simd->tables[plane][color / 16][16 + color % 16] = value;
    }
  }
  simd->shrinks = plan_shrink(rows, columns, simd.get());
  return simd;
}

ENVFLEET_AVX2 void simd_color(const ScreenSimd& simd, int plane, Shown shown, const std::uint8_t* last,
                              const std::uint8_t* before, std::uint8_t* target, std::uint8_t* is_changed) {
  __m256i tables[kTables];
  for (int i = 0; i < kTables; ++i) tables[i] = load(simd.tables[plane][i]);
  if (shown == Shown::kBefore) last = before;
  const int raw_width = simd.format.raw_width;
  for (int y = 0; y < simd.format.raw_height; ++y) {
    __m256i difference = _mm256_setzero_si256();
    for (int x = 0; x < raw_width; x += 32) {
      const __m256i first = load(last + x);
      const __m256i old = load(target + x);
      __m256i colors = look_up(tables, first);
      if (shown == Shown::kBefore) {
        colors = _mm256_max_epu8(colors, old);
      } else if (shown == Shown::kBoth) {
        const __m256i second = load(before + x);
        // Most of two screens in a row is the same.
        if (_mm256_movemask_epi8(_mm256_cmpeq_epi8(first, second)) != -1) {
          colors = _mm256_max_epu8(colors, look_up(tables, second));
        }
      }
      difference = _mm256_or_si256(difference, _mm256_xor_si256(colors, old));
      store(target + x, colors);
    }
    is_changed[y] = _mm256_testz_si256(difference, difference) ? 0 : 1;
    last += raw_width;
    before += raw_width;
    target += raw_width;
  }
}

bool simd_shrinks(const ScreenSimd& simd) { return simd.shrinks; }

void simd_shrink_line(const ScreenSimd& simd, const std::uint8_t* pixels, int y, std::uint8_t* target) {
  // Groups read 16 sums from their base on: what lies past the end is read, and no weight takes it.
  alignas(32) std::uint16_t line[kMaxRawWidth + 32];
  for (int i = 0; i < 32; ++i) line[simd.format.raw_width + i] = 0;
  add_lines(simd.lines[y], pixels, simd.format.raw_width, line);
  add_columns(simd, line, target);
}

}  // namespace envfleet::kernels

#else

namespace envfleet::kernels {

std::shared_ptr<const ScreenSimd> make_simd(const ScreenFormat&, const std::uint8_t*, const ResizeWeights&,
                                            const ResizeWeights&) {
  return nullptr;
}
void simd_color(const ScreenSimd&, int, Shown, const std::uint8_t*, const std::uint8_t*, std::uint8_t*, std::uint8_t*) {}
bool simd_shrinks(const ScreenSimd&) { return false; }
void simd_shrink_line(const ScreenSimd&, const std::uint8_t*, int, std::uint8_t*) {}

}  // namespace envfleet::kernels

#endif
