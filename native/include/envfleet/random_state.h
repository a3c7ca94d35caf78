// RandomState: numpy's legacy generator, np.random.RandomState, bit for bit.
//
// The Mersenne Twister MT19937 with the distributions that numpy has frozen for it. An env whose original draws from a
// RandomState declares
//
//   using Random = envfleet::RandomState;
//
// and receives one in reset() instead of an Rng. It takes 2.5 kB: for ports, not for new envs.
//
// Thread safety: none; a generator is used by one thread at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "envfleet/rng.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

class RandomState {
 public:
  // The whole generator: what get_state saves and set_state restores.
  struct State {
    std::uint32_t key[624];
    std::int32_t position;  // in key; 624: at its end; 625: seeded, and nothing drawn yet
    std::int32_t has_gauss;
    double gauss;
  };

  RandomState() { seed(std::uint32_t{5489}); }

  // np.random.RandomState(value).
  void seed(std::uint32_t value) {
    for (std::uint32_t i = 0; i < kLength; ++i) {
      state_.key[i] = value;
      value = 1812433253u * (value ^ (value >> 30)) + i + 1;
    }
    restart();
  }
  // np.random.RandomState([values...]).
  void seed(std::span<const std::uint32_t> values);
  // words: the seed as four little-endian 32-bit words. A RandomState takes 32 bits: larger seeds are hashed, as
  // int(np.random.SeedSequence(seed).generate_state(1)[0]).
  void seed(const std::uint32_t words[4]) {
    if ((words[1] | words[2] | words[3]) == 0) {
      seed(words[0]);
      return;
    }
    std::uint64_t drawn;
    SeedSequence(words).generate(&drawn, 1);
    seed(static_cast<std::uint32_t>(drawn));
  }

  // Whether nothing was drawn since seed(): for envs whose original builds its model from the seed.
  bool is_fresh() const { return state_.position == kSeeded; }

  std::uint32_t next_uint32() {
    if (state_.position >= kLength) refill();
    std::uint32_t value = state_.key[state_.position++];
    value ^= value >> 11;
    value ^= (value << 7) & 0x9d2c5680u;
    value ^= (value << 15) & 0xefc60000u;
    return value ^ (value >> 18);
  }
  std::uint64_t next_uint64() {
    const std::uint64_t high = next_uint32();
    return (high << 32) | next_uint32();
  }

  // random_sample() and rand(): uniform in [0, 1).
  double random_sample() {
    const std::uint32_t high = next_uint32() >> 5;
    const std::uint32_t low = next_uint32() >> 6;
    return (high * 67108864.0 + low) / 9007199254740992.0;
  }
  double uniform(double low, double high) { return low + (high - low) * random_sample(); }

  // randn(): draws in pairs, and keeps the second for the next call.
  double randn() {
    if (state_.has_gauss != 0) {
      state_.has_gauss = 0;
      return std::exchange(state_.gauss, 0.0);
    }
    double x, y, square;
    do {
      x = 2.0 * random_sample() - 1.0;
      y = 2.0 * random_sample() - 1.0;
      square = x * x + y * y;
    } while (square >= 1.0 || square == 0.0);
    const double factor = std::sqrt(-2.0 * std::log(square) / square);
    state_.gauss = factor * x;
    state_.has_gauss = 1;
    return factor * y;
  }

  // randint(low, high) of numpy's default integer, and choice(high) for low = 0: uniform in [low, high).
  std::int64_t randint(std::int64_t low, std::int64_t high) {
    if (high <= low) {
      throw std::invalid_argument("RandomState::randint expected low < high, got " + std::to_string(low) + " and " +
                                  std::to_string(high));
    }
    const auto offset = static_cast<std::uint64_t>(low);
    const std::uint64_t span = static_cast<std::uint64_t>(high) - offset - 1;
    return static_cast<std::int64_t>(offset + interval(span));
  }

  // choice(len(probabilities), p=probabilities): one index.
  std::size_t choice(std::span<const double> probabilities) {
    double total = 0;
    for (const double own : probabilities) total += own;
    const double drawn = random_sample();
    double sum = 0;
    std::size_t index = 0;
    for (const double own : probabilities) {
      sum += own;
      if (drawn < sum / total) return index;
      ++index;
    }
    return index;
  }

  // shuffle(values); permutation(values) is a shuffled copy.
  template <class T>
  void shuffle(std::span<T> values) {
    for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[interval(i)]);
  }

  State save() const { return state_; }
  void load(const State& saved) {
    if (saved.position < 0 || saved.position > kSeeded || (saved.has_gauss & ~1) != 0) {
      throw std::invalid_argument("the state holds no valid generator");
    }
    state_ = saved;
  }
  // An Rng needs the engine's distributions; this one has its own.
  void set_host(const ef_host*) {}

 private:
  static constexpr std::int32_t kLength = 624;
  static constexpr std::int32_t kSeeded = kLength + 1;

  void restart() {
    state_.position = kSeeded;
    state_.has_gauss = 0;
    state_.gauss = 0;
  }

  // Uniform in [0, max]: draws of as many bits as max has until one fits.
  std::uint64_t interval(std::uint64_t max) {
    if (max == 0) return 0;
    std::uint64_t mask = max;
    for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
    std::uint64_t value;
    do {
      value = (max <= 0xFFFFFFFFu ? next_uint32() : next_uint64()) & mask;
    } while (value > max);
    return value;
  }

  void refill() {
    constexpr std::int32_t kMiddle = 397;
    std::uint32_t* const key = state_.key;
    const auto twist = [key](std::int32_t i, std::int32_t next, std::int32_t from) {
      const std::uint32_t mixed = (key[i] & 0x80000000u) | (key[next] & 0x7fffffffu);
      key[i] = key[from] ^ (mixed >> 1) ^ ((0u - (mixed & 1u)) & 0x9908b0dfu);
    };
    for (std::int32_t i = 0; i < kLength - kMiddle; ++i) twist(i, i + 1, i + kMiddle);
    for (std::int32_t i = kLength - kMiddle; i < kLength - 1; ++i) twist(i, i + 1, i + kMiddle - kLength);
    twist(kLength - 1, 0, kMiddle - 1);
    state_.position = 0;
  }

  State state_;
};

inline void RandomState::seed(std::span<const std::uint32_t> values) {
  if (values.empty()) throw std::invalid_argument("RandomState::seed expected at least one number, got none");
  seed(std::uint32_t{19650218});
  std::uint32_t* const key = state_.key;
  std::size_t i = 1, j = 0;
  const auto wrap = [&i, key] {
    if (++i >= kLength) {
      key[0] = key[kLength - 1];
      i = 1;
    }
  };
  for (std::size_t k = std::max<std::size_t>(kLength, values.size()); k > 0; --k) {
    key[i] = (key[i] ^ ((key[i - 1] ^ (key[i - 1] >> 30)) * 1664525u)) + values[j] + static_cast<std::uint32_t>(j);
    wrap();
    if (++j >= values.size()) j = 0;
  }
  for (std::size_t k = kLength - 1; k > 0; --k) {
    key[i] = (key[i] ^ ((key[i - 1] ^ (key[i - 1] >> 30)) * 1566083941u)) - static_cast<std::uint32_t>(i);
    wrap();
  }
  key[0] = 0x80000000u;
  restart();
}

}  // namespace envfleet

#pragma GCC visibility pop
