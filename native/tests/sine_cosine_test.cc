// fast_sine() and fast_cosine(): the C library's results, bit for bit.
#include "engine/sine_cosine.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "tests/check.h"

using envfleet::engine::fast_cosine;
using envfleet::engine::fast_sine;

namespace {

// The bounds are those of its functions. Also where has_fast_sine() is false for being slow: under sanitizers.
#ifdef __GLIBC__
constexpr bool kIsGlibc = true;
#else
constexpr bool kIsGlibc = false;
#endif

void check_all(const std::vector<double>& angles) {
  const auto count = static_cast<std::int64_t>(angles.size());
  std::vector<double> sines(angles.size()), cosines = angles;
  fast_sine(angles.data(), sines.data(), count);
  fast_cosine(cosines.data(), cosines.data(), count);
  std::int64_t num_wrong = 0;
  for (std::size_t i = 0; i < angles.size(); ++i) {
    num_wrong += std::bit_cast<std::uint64_t>(sines[i]) != std::bit_cast<std::uint64_t>(std::sin(angles[i]));
    num_wrong += std::bit_cast<std::uint64_t>(cosines[i]) != std::bit_cast<std::uint64_t>(std::cos(angles[i]));
  }
  CHECK_EQUAL(num_wrong, 0);
}

int scale() {
  const char* given = std::getenv("ENVFLEET_TEST_SCALE");
  return given == nullptr ? 1 : std::atoi(given);
}

}  // namespace

TEST(random_angles) {
  if (!kIsGlibc) return;
  std::mt19937_64 random(std::random_device{}());
  for (const double limit : {1e-6, 1e-3, 0.05, 0.126, 0.21, 0.5, 0.7, 4.0, 1e6}) {
    std::uniform_real_distribution<double> angle(-limit, limit);
    for (int round = 0; round < 8 * scale(); ++round) {
      std::vector<double> angles(1 << 14);
      for (double& own : angles) own = angle(random);
      check_all(angles);
    }
  }
}

// Cosines around a power of two, where the unit in the last place changes, are those of the smallest angles.
TEST(small_angles_of_every_size) {
  if (!kIsGlibc) return;
  std::vector<double> angles;
  for (double size = 0.5; size > 1e-320; size *= 0.97) {
    angles.push_back(size);
    angles.push_back(-size);
  }
  check_all(angles);
}

TEST(special_values) {
  if (!kIsGlibc) return;
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double special : {0.0, -0.0, infinity, -infinity, std::nan(""), 0.5, -0.5, 1e300, 5e-324}) {
    for (int position = 0; position < 11; ++position) {  // one whole vector and three more values
      std::vector<double> angles(11, 0.125);
      angles[position] = special;
      check_all(angles);
    }
  }
}
