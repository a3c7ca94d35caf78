// dm_control's reward functions: tolerance() and its sigmoids, with numpy's arithmetic.
#pragma once

#include <cmath>
#include <numbers>
#include <span>

#include "../numpy_sums.h"
#include "envfleet/numpy_math.h"

namespace envfleet::dm_control {

enum class Sigmoid { kGaussian, kLinear, kQuadratic, kLongTail, kReciprocal };

inline constexpr double kDefaultValueAtMargin = 0.1;

// Bounds, and how the value falls outside of them: to value_at_margin at a distance of margin; 0: at once.
struct Tolerance {
  double lower = 0, upper = 0, margin = 0;
  Sigmoid sigmoid = Sigmoid::kGaussian;
  double value_at_margin = kDefaultValueAtMargin;
};

// x ** 2: numpy squares the elements of arrays with a product, and scalars with pow().
enum class Shape { kScalar, kArray };

template <Shape shape>
double square(double value) {
  return shape == Shape::kArray ? value * value : numpy::squared(value);
}

template <Shape shape>
double sigmoid_value(double x, const Tolerance& rule) {
  const double at_margin = rule.value_at_margin;
  switch (rule.sigmoid) {
    case Sigmoid::kGaussian:
      return numpy::exp(-0.5 * square<shape>(x * std::sqrt(-2 * std::log(at_margin))));
    case Sigmoid::kLinear: {
      const double scaled = x * (1 - at_margin);
      return std::abs(scaled) < 1 ? 1 - scaled : 0.0;
    }
    case Sigmoid::kQuadratic: {
      const double scaled = x * std::sqrt(1 - at_margin);
      return std::abs(scaled) < 1 ? 1 - square<shape>(scaled) : 0.0;
    }
    case Sigmoid::kLongTail:
      return 1 / (square<shape>(x * std::sqrt(1 / at_margin - 1)) + 1);
    case Sigmoid::kReciprocal:
      return 1 / (std::abs(x) * (1 / at_margin - 1) + 1);
  }
  return 0.0;
}

template <Shape shape = Shape::kScalar>
double tolerance(double x, const Tolerance& rule) {
  if (rule.lower <= x && x <= rule.upper) return 1.0;
  if (rule.margin == 0) return 0.0;
  const double distance = (x < rule.lower ? rule.lower - x : x - rule.upper) / rule.margin;
  return sigmoid_value<shape>(distance, rule);
}

// tolerance() of each element, and their mean.
inline double mean_tolerance(std::span<const double> values, const Tolerance& rule) {
  const auto count = static_cast<std::ptrdiff_t>(values.size());
  const auto value = [&](std::ptrdiff_t i) { return tolerance<Shape::kArray>(values[static_cast<std::size_t>(i)], rule); };
  return mujoco::pairwise_sum<double>(value, 0, count) / static_cast<double>(count);
}

// A small control is rewarded in many tasks, by the mean over its elements.
inline constexpr Tolerance kSmallControl{0, 0, 1, Sigmoid::kQuadratic, 0};

// Above a bound; the value falls linearly to 0, or to value_at_margin, at a distance of margin below it.
inline Tolerance above(double bound, double margin, double value_at_margin = 0) {
  return {bound, std::numeric_limits<double>::infinity(), margin, Sigmoid::kLinear, value_at_margin};
}

inline double degrees(double angle) { return angle * (std::numbers::pi / 180); }

}  // namespace envfleet::dm_control
