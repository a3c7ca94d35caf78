// Rng: bit for bit numpy's PCG64. Known answers, each with the Python that printed it (numpy 2.4.6):
//
//   from numpy.random import Generator, PCG64
//   g = lambda seed=0: Generator(PCG64(seed))
#include "envfleet/rng.h"

#include "engine/numpy_host.h"
#include "tests/check.h"

using envfleet::Rng;

namespace {

Rng seeded(std::uint64_t seed = 0) {
  Rng rng;
  rng.set_host(envfleet::engine::numpy_host());
  rng.seed(seed);
  return rng;
}

}  // namespace

TEST(raw_words) {
  // [hex(x) for x in PCG64(0).random_raw(4)]
  Rng rng = seeded();
  for (const std::uint64_t expected :
       {0xa30febcfd9c2825full, 0x4510bdf882d9d721ull, 0xa7d3da94ecde8b8ull, 0x43b27b61342f01dull}) {
    CHECK_EQUAL(rng.next_uint64(), expected);
  }
}

TEST(seed_of_more_than_64_bits) {
  // [hex(x) for x in PCG64(30792422974944119506).random_raw(4)]
  const auto seed = (static_cast<unsigned __int128>(1) << 64) + 12345678901234567890ull;
  std::uint32_t words[4];
  for (int i = 0; i < 4; ++i) words[i] = static_cast<std::uint32_t>(seed >> (32 * i));
  Rng rng;
  rng.seed(words);
  for (const std::uint64_t expected :
       {0x740eb36d347e4980ull, 0x5ca2b8cda1444f2dull, 0xd804020b266edc07ull, 0x8b64018bc729d0e5ull}) {
    CHECK_EQUAL(rng.next_uint64(), expected);
  }
}

TEST(random_doubles) {
  // [x.hex() for x in g().random(4)]
  Rng rng = seeded();
  for (const double expected : {0x1.461fd79fb3850p-1, 0x1.1442f7e20b674p-2, 0x1.4fa7b529d9bd0p-5, 0x1.0ec9ed84d0bc0p-6}) {
    CHECK_EQUAL(rng.random(), expected);
  }
}

TEST(integers) {
  // r = g(); [r.integers(0, 10) for _ in range(8)]
  Rng small = seeded();
  for (const int expected : {8, 6, 5, 2, 3, 0, 0, 0}) CHECK_EQUAL(small.integers(0, 10), expected);
  // r = g(); [r.integers(0, 2**32) for _ in range(3)]
  Rng word = seeded();
  for (const std::int64_t expected : {3653403231, 2735729615, 2195314465})
    CHECK_EQUAL(word.integers(0, 1ll << 32), expected);
  // r = g(); [r.integers(-5, 2**40) for _ in range(4)]
  Rng large = seeded();
  for (const std::int64_t expected : {700346781655, 296633628799, 45050865994, 18172327438}) {
    CHECK_EQUAL(large.integers(-5, 1ll << 40), expected);
  }
  // r = g(); r.integers(0, 10), r.random().hex(), r.integers(0, 10): the second half of the first draw waits for the third
  // call
  Rng mixed = seeded();
  CHECK_EQUAL(mixed.integers(0, 10), 8);
  CHECK_EQUAL(mixed.random(), 0x1.1442f7e20b674p-2);
  CHECK_EQUAL(mixed.integers(0, 10), 6);
  CHECK_EQUAL(mixed.integers(4, 5), 4);
  CHECK_THROWS(mixed.integers(5, 5), std::invalid_argument, "expected low < high");
}

TEST(distributions_of_the_host) {
  // r = g(); [r.standard_normal().hex() for _ in range(4)]
  Rng normal = seeded();
  for (const double expected : {0x1.017ed89db8441p-3, -0x1.0e8cfe9bd45ccp-3, 0x1.47e57a468b06dp-1, 0x1.adabbec84d4f0p-4}) {
    CHECK_EQUAL(normal.normal(), expected);
  }
  // r = g(); [r.standard_exponential() for _ in range(2)], [r.standard_gamma(2.5) for _ in range(2)], r.beta(2.0, 3.0),
  // [r.poisson(4.5) for _ in range(3)]
  Rng rng = seeded();
  for (const double expected : {0x1.5c2008d61b61ap-1, 0x1.050450cde46cap+0}) CHECK_EQUAL(rng.exponential(), expected);
  for (const double expected : {0x1.a0575ca9dda11p+1, 0x1.784f751006d07p+0}) CHECK_EQUAL(rng.gamma(2.5), expected);
  CHECK_EQUAL(rng.beta(2.0, 3.0), 0x1.68622f05eaf10p-1);
  for (const int expected : {1, 3, 4}) CHECK_EQUAL(rng.poisson(4.5), expected);
}

TEST(saved_generator_goes_on_where_it_was) {
  Rng rng = seeded(7);
  rng.integers(0, 10);  // leaves half a draw behind
  const Rng::State saved = rng.save();
  const std::int64_t first = rng.integers(0, 1000), second = rng.integers(0, 1000);
  Rng other = seeded(8);
  other.load(saved);
  CHECK_EQUAL(other.integers(0, 1000), first);
  CHECK_EQUAL(other.integers(0, 1000), second);
}

TEST(without_an_engine_the_host_is_missed) {
  Rng rng;
  rng.seed(std::uint64_t{0});
  CHECK_THROWS(rng.normal(), std::logic_error, "no engine behind it");
}
