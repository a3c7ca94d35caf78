// ResetBounds: the interval that reset(options={"low": ..., "high": ...}) widens or narrows.
//
// Thread safety: none needed; it only reads the Out that it is given.
#pragma once

#include <stdexcept>
#include <string>

#include "envfleet/env.h"

namespace envfleet {

struct ResetBounds {
  double low, high;
};

inline ResetBounds reset_bounds(const Out& out, double default_low, double default_high) {
  const ResetBounds bounds{out.option("low", default_low), out.option("high", default_high)};
  if (bounds.low > bounds.high) {
    throw std::invalid_argument("reset() expected option low <= high, got low " + std::to_string(bounds.low) + " and high " +
                                std::to_string(bounds.high));
  }
  return bounds;
}

}  // namespace envfleet
