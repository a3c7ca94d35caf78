// scipy.ndimage.zoom() of a square array to a larger one: cubic splines, mirrored at the borders.
//
// The operations and their order are scipy's: terrains, and with them trajectories, come out equal.
#pragma once

#include <array>
#include <cmath>
#include <vector>

namespace envfleet::dm_control {

// Turns `count` samples, `stride` apart, into the coefficients of the spline that passes through them.
inline void filter_spline(double* values, int count, int stride) {
  const double pole = -0.267949192431122706472553658494127633;  // sqrt(3) - 2
  const auto at = [=](int i) -> double& { return values[static_cast<std::ptrdiff_t>(i) * stride]; };
  const double gain = (1.0 - pole) * (1.0 - 1.0 / pole);
  for (int i = 0; i < count; ++i) at(i) *= gain;

  const double last_power = std::pow(pole, count - 1);
  double power = pole;
  at(0) += last_power * at(count - 1);
  for (int i = 1; i < count - 1; ++i, power *= pole) at(0) += power * (at(i) + last_power * at(count - 1 - i));
  at(0) /= 1 - last_power * last_power;
  for (int i = 1; i < count; ++i) at(i) += pole * at(i - 1);

  at(count - 1) = (pole * at(count - 2) + at(count - 1)) * pole / (pole * pole - 1);
  for (int i = count - 2; i >= 0; --i) at(i) = pole * (at(i + 1) - at(i));
}

// The four coefficients that a value between the samples depends on.
struct SplineTaps {
  bool is_inside;  // scipy returns 0 where rounding puts the last value beyond the last sample
  std::array<int, 4> index;
  std::array<double, 4> weight;
};

inline SplineTaps spline_taps(double position, int count) {
  SplineTaps taps{position >= 0 && position <= count - 1, {}, {}};
  const double knot = std::floor(position);
  for (int k = 0; k < 4; ++k) {
    const int i = static_cast<int>(knot) - 1 + k;
    taps.index[static_cast<std::size_t>(k)] = i < 0 ? -i : i >= count ? 2 * count - 2 - i : i;
  }
  const double after = position - knot, before = 1.0 - after;
  taps.weight[0] = before * before * before / 6.0;
  taps.weight[1] = (after * after * (after - 2.0) * 3.0 + 4.0) / 6.0;
  taps.weight[2] = (before * before * (before - 2.0) * 3.0 + 4.0) / 6.0;
  taps.weight[3] = 1.0 - taps.weight[0] - taps.weight[1] - taps.weight[2];
  return taps;
}

// values: from_size rows of from_size values. Returns to_size rows of to_size values.
inline std::vector<double> cubic_zoom(std::vector<double> values, int from_size, int to_size) {
  for (int column = 0; column < from_size; ++column) filter_spline(values.data() + column, from_size, from_size);
  for (int row = 0; row < from_size; ++row) {
    filter_spline(values.data() + static_cast<std::ptrdiff_t>(row) * from_size, from_size, 1);
  }
  const double scale = static_cast<double>(from_size - 1) / static_cast<double>(to_size - 1);
  std::vector<SplineTaps> taps;
  taps.reserve(static_cast<std::size_t>(to_size));
  for (int i = 0; i < to_size; ++i) taps.push_back(spline_taps(i * scale, from_size));
  std::vector<double> zoomed;
  zoomed.reserve(taps.size() * taps.size());
  for (const SplineTaps& row : taps) {
    for (const SplineTaps& column : taps) {
      double sum = 0;
      for (std::size_t i = 0; i < 4 && row.is_inside && column.is_inside; ++i) {
        const double* const line = values.data() + static_cast<std::ptrdiff_t>(row.index[i]) * from_size;
        for (std::size_t j = 0; j < 4; ++j) sum += line[column.index[j]] * row.weight[i] * column.weight[j];
      }
      zoomed.push_back(sum);
    }
  }
  return zoomed;
}

}  // namespace envfleet::dm_control
