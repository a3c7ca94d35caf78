// Rng: numpy's PCG64 generator, seeded as Gymnasium seeds it.
//
// The stream is bit for bit that of np.random.Generator(np.random.PCG64(seed)). numpy promises never to change it, so it
// is implemented here instead of called through a pointer: an env's draws can be inlined, a generator takes 56 bytes
// instead of a Python object, and a plug-in does not depend on Python or numpy. Distributions that need tables (normal,
// gamma, ...) come from numpy's own library, through the engine. Parameters that numpy refuses throw
// std::invalid_argument.
//
// Thread safety: none; a generator is used by one thread at a time. The engine guarantees that for the generator that it
// passes to an env.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

#include "envfleet/abi.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

class Rng {
 public:
  // The whole generator: what get_state saves and set_state restores.
  struct State {
    std::uint64_t state_high = 0, state_low = 0;
    std::uint64_t increment_high = 0, increment_low = 0;
    std::uint32_t has_spare = 0, spare = 0;
  };

  // words: the seed as four little-endian 32-bit words, as numpy's SeedSequence takes them.
  void seed(const std::uint32_t words[4]);
  void seed(std::uint64_t value) {
    const std::uint32_t words[4] = {static_cast<std::uint32_t>(value), static_cast<std::uint32_t>(value >> 32), 0, 0};
    seed(words);
  }

  std::uint64_t next_uint64() {
    advance();
    const auto high = static_cast<std::uint64_t>(state_ >> 64);
    const auto low = static_cast<std::uint64_t>(state_);
    const unsigned rotation = static_cast<unsigned>(high >> 58);
    const std::uint64_t folded = high ^ low;
    return (folded >> rotation) | (folded << ((64 - rotation) & 63));
  }

  // Half of a 64-bit draw; the other half is kept for the next call, as numpy does.
  std::uint32_t next_uint32() {
    if (has_spare_ != 0) {
      has_spare_ = 0;
      return spare_;
    }
    const std::uint64_t both = next_uint64();
    has_spare_ = 1;
    spare_ = static_cast<std::uint32_t>(both >> 32);
    return static_cast<std::uint32_t>(both);
  }

  // Generator.random(): uniform in [0, 1).
  double random() { return static_cast<double>(next_uint64() >> 11) * (1.0 / 9007199254740992.0); }

  // Generator.uniform(low, high).
  double uniform(double low, double high) {
    const double range = high - low;
    // As numpy: of NaN too, and of a range of -0.0.
    if (!(range < std::numeric_limits<double>::infinity()) || std::signbit(range)) [[unlikely]] {
      throw_invalid("uniform", "low <= high with a finite difference", low, high);
    }
    return low + range * random();
  }

  // Generator.integers(low, high): uniform in [low, high).
  std::int64_t integers(std::int64_t low, std::int64_t high);

  // Generator.standard_normal(), and normal(mean, scale).
  double normal() {
    ef_bitgen bitgen = as_bitgen();
    return host().standard_normal(&bitgen);
  }
  double normal(double mean, double scale) {
    check_not_negative("normal", "scale >= 0", scale);
    return mean + scale * normal();
  }
  double exponential(double scale = 1.0) {
    check_not_negative("exponential", "scale >= 0", scale);
    ef_bitgen bitgen = as_bitgen();
    return scale * host().standard_exponential(&bitgen);
  }
  double gamma(double shape, double scale = 1.0) {
    check_not_negative("gamma", "shape >= 0", shape);
    check_not_negative("gamma", "scale >= 0", scale);
    ef_bitgen bitgen = as_bitgen();
    return scale * host().standard_gamma(&bitgen, shape);
  }
  double beta(double a, double b) {
    if (a <= 0 || b <= 0) throw_invalid("beta", "a > 0 and b > 0", a, b);
    ef_bitgen bitgen = as_bitgen();
    return host().beta(&bitgen, a, b);
  }
  std::int64_t poisson(double rate) {
    // numpy's own limit: above it the result may not fit an int64.
    if (!(rate >= 0 && rate <= 9.223372006484771e18)) throw_invalid("poisson", "a rate from 0 to 9.22e18", rate);
    ef_bitgen bitgen = as_bitgen();
    return host().poisson(&bitgen, rate);
  }

  State save() const;
  void load(const State& saved);
  void set_host(const ef_host* host) { host_ = host; }

 private:
  using uint128 = unsigned __int128;

  static constexpr uint128 multiplier() { return (uint128{0x2360ED051FC65DA4ULL} << 64) | 0x4385DF649FCCF645ULL; }
  void advance() { state_ = state_ * multiplier() + increment_; }

  // As numpy: -0.0 is negative, NaN is not and gives NaN.
  static void check_not_negative(const char* function, const char* expected, double value) {
    if (std::signbit(value) && !std::isnan(value)) [[unlikely]]
      throw_invalid(function, expected, value);
  }
  // Out of line: inlined, it would keep the draws themselves from being inlined into an env.
  template <class... Values>
  [[noreturn, gnu::noinline, gnu::cold]] static void throw_invalid(const char* function, const char* expected,
                                                                   Values... values) {
    std::string got;
    ((got += (got.empty() ? "" : " and ") + std::to_string(values)), ...);
    throw std::invalid_argument(std::string("Rng::") + function + " expected " + expected + ", got " + got);
  }

  const ef_host& host() const {
    if (host_ == nullptr) throw std::logic_error("this Rng has no engine behind it: only uniform and integers work");
    return *host_;
  }
  ef_bitgen as_bitgen() {
    return {this, [](void* self) { return static_cast<Rng*>(self)->next_uint64(); },
            [](void* self) { return static_cast<Rng*>(self)->next_uint32(); },
            [](void* self) { return static_cast<Rng*>(self)->random(); },
            [](void* self) { return static_cast<Rng*>(self)->next_uint64(); }};
  }

  uint128 state_ = 0;
  uint128 increment_ = 1;
  std::uint32_t has_spare_ = 0;
  std::uint32_t spare_ = 0;
  const ef_host* host_ = nullptr;
};

// numpy's SeedSequence: spreads a seed of up to 128 bits over a pool of four words
// and draws the generator's initial state from it.
class SeedSequence {
 public:
  explicit SeedSequence(const std::uint32_t words[4]) {
    std::uint32_t hash = 0x43b0d7e5u;
    for (int i = 0; i < 4; ++i) pool_[i] = scramble(words[i], hash);
    for (int source = 0; source < 4; ++source) {
      for (int target = 0; target < 4; ++target) {
        if (source != target) pool_[target] = mix(pool_[target], scramble(pool_[source], hash));
      }
    }
  }

  // generate_state(count, uint64).
  void generate(std::uint64_t* out, int count) const {
    std::uint32_t hash = 0x8b51f9ddu;
    for (int i = 0; i < 2 * count; ++i) {
      std::uint32_t word = pool_[i % 4] ^ hash;
      hash *= 0x58f38dedu;
      word *= hash;
      word ^= word >> 16;
      if (i % 2 == 0) {
        out[i / 2] = word;
      } else {
        out[i / 2] |= static_cast<std::uint64_t>(word) << 32;
      }
    }
  }

 private:
  static std::uint32_t scramble(std::uint32_t value, std::uint32_t& hash) {
    value ^= hash;
    hash *= 0x931e8875u;
    value *= hash;
    return value ^ (value >> 16);
  }
  static std::uint32_t mix(std::uint32_t x, std::uint32_t y) {
    const std::uint32_t mixed = 0xca01f9ddu * x - 0x4973f715u * y;
    return mixed ^ (mixed >> 16);
  }

  std::uint32_t pool_[4];
};

inline void Rng::seed(const std::uint32_t words[4]) {
  std::uint64_t drawn[4];
  SeedSequence(words).generate(drawn, 4);
  increment_ = (((uint128{drawn[2]} << 64) | drawn[3]) << 1) | 1;
  state_ = 0;
  advance();
  state_ += (uint128{drawn[0]} << 64) | drawn[1];
  advance();
  has_spare_ = 0;
  spare_ = 0;
}

inline std::int64_t Rng::integers(std::int64_t low, std::int64_t high) {
  if (high <= low) throw_invalid("integers", "low < high", low, high);
  const std::uint64_t span = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low) - 1;
  const auto offset = static_cast<std::uint64_t>(low);
  if (span == 0) return low;
  if (span < 0xFFFFFFFFu) {
    // Lemire's multiply-and-reject in 32 bits, as numpy draws ranges that fit.
    const auto count = static_cast<std::uint32_t>(span) + 1;
    std::uint64_t product = static_cast<std::uint64_t>(next_uint32()) * count;
    auto leftover = static_cast<std::uint32_t>(product);
    if (leftover < count) {
      const std::uint32_t threshold = (0u - count) % count;
      while (leftover < threshold) {
        product = static_cast<std::uint64_t>(next_uint32()) * count;
        leftover = static_cast<std::uint32_t>(product);
      }
    }
    return static_cast<std::int64_t>(offset + (product >> 32));
  }
  if (span == 0xFFFFFFFFu) return static_cast<std::int64_t>(offset + next_uint32());
  if (span == ~std::uint64_t{0}) return static_cast<std::int64_t>(offset + next_uint64());
  const std::uint64_t count = span + 1;
  uint128 product = uint128{next_uint64()} * count;
  auto leftover = static_cast<std::uint64_t>(product);
  if (leftover < count) {
    const std::uint64_t threshold = (0 - count) % count;
    while (leftover < threshold) {
      product = uint128{next_uint64()} * count;
      leftover = static_cast<std::uint64_t>(product);
    }
  }
  return static_cast<std::int64_t>(offset + static_cast<std::uint64_t>(product >> 64));
}

inline Rng::State Rng::save() const {
  State saved;
  saved.state_high = static_cast<std::uint64_t>(state_ >> 64);
  saved.state_low = static_cast<std::uint64_t>(state_);
  saved.increment_high = static_cast<std::uint64_t>(increment_ >> 64);
  saved.increment_low = static_cast<std::uint64_t>(increment_);
  saved.has_spare = has_spare_;
  saved.spare = spare_;
  return saved;
}

inline void Rng::load(const State& saved) {
  state_ = (uint128{saved.state_high} << 64) | saved.state_low;
  increment_ = (uint128{saved.increment_high} << 64) | saved.increment_low;
  has_spare_ = saved.has_spare;
  spare_ = saved.spare;
}

}  // namespace envfleet

#pragma GCC visibility pop
