// pick_outcome: which of several outcomes a uniform draw chooses, as the toy-text envs do.
#pragma once

#include <initializer_list>

namespace envfleet {

// numpy's argmax(cumsum(probabilities) > draw). The sum may round to just below 1; a draw
// above it picks outcome 0, as argmax does when nothing is true, not the last one.
inline int pick_outcome(double draw, std::initializer_list<double> probabilities) {
  double cumulative = 0.0;
  int outcome = 0;
  for (const double probability : probabilities) {
    cumulative += probability;
    if (cumulative > draw) return outcome;
    ++outcome;
  }
  return 0;
}

}  // namespace envfleet
