// Spec: what spec() may declare, and what it refuses.
#include "envfleet/spec.h"

#include <string>

#include "tests/check.h"

using envfleet::box;
using envfleet::discrete;
using envfleet::scalar;
using envfleet::Space;
using envfleet::Spec;

namespace {

const ef_spec& finished(Spec& spec, bool has_lanes = false) { return *spec.finish(false, false, has_lanes); }

}  // namespace

TEST(names_are_copied) {
  Spec spec;
  for (int i = 0; i < 40; ++i) {
    const std::string key = "a rather long name of a joint " + std::to_string(i);
    spec.observation(key.c_str(), box<float>({2}));
    spec.info(key, scalar<double>());
    spec.reset_option(key + " start");
  }
  spec.action(discrete(2));
  const ef_spec& raw = finished(spec);
  CHECK_EQUAL(raw.num_obs, 40);
  for (int i = 0; i < 40; ++i) {
    const std::string key = "a rather long name of a joint " + std::to_string(i);
    CHECK(raw.obs[i].name == key);
    CHECK(raw.info[i].name == key);
    CHECK(raw.reset_options[i] == key + " start");
  }
}

TEST(bounds_in_braces) {
  const Space one = box<float>({2}, {5});
  CHECK_EQUAL(one.shape.size(), 1u);
  CHECK_EQUAL(one.shape[0], 1);
  CHECK_EQUAL(one.low[0], 2.0);
  CHECK_EQUAL(one.high[0], 5.0);
  const Space two = box<float>({-1, -2}, {1, 2});
  CHECK_EQUAL(two.shape[0], 2);
  CHECK_EQUAL(two.high[1], 2.0);
  const Space shape = box<float>({2, 3}, -1, 1);
  CHECK_EQUAL(shape.shape.size(), 2u);
  CHECK_EQUAL(shape.low[0], -1.0);
  const Space lower = box<float>({4}, 0);
  CHECK_EQUAL(lower.shape[0], 4);
  CHECK_EQUAL(lower.low[0], 0.0);
}

TEST(declared_twice) {
  Spec spec;
  spec.observation("a", box<float>({2})).observation("b", box<float>({2})).action(discrete(2)).info("x", scalar<float>());
  CHECK_THROWS(spec.observation("a", box<float>({3})), std::invalid_argument, "the observation \"a\" twice");
  CHECK_THROWS(spec.info("x", scalar<int>()), std::invalid_argument, "the info \"x\" twice");
  CHECK_THROWS(spec.action(discrete(3)), std::invalid_argument, "two actions");
}

TEST(keys_of_the_pool) {
  Spec spec;
  for (const char* key : {"env_id", "elapsed_step", "final_obs", "final_info", "error"}) {
    CHECK_THROWS(spec.info(key, scalar<float>()), std::invalid_argument, "a key of the pool itself");
  }
  CHECK_THROWS(spec.info("_x", scalar<float>()), std::invalid_argument, "which marks masks, got \"_x\"");
  CHECK_THROWS(spec.info("", scalar<float>()), std::invalid_argument, "got \"\"");
}

TEST(presence_of_an_info) {
  Spec spec;
  for (const int presence : {0, 77}) {
    CHECK_THROWS(spec.info("x", scalar<float>(), presence), std::invalid_argument, "EF_ON_STEP, EF_ON_RESET or both");
  }
  spec.info("x", scalar<float>(), EF_ON_STEP);
}

TEST(lanes_have_no_infos) {
  Spec spec;
  spec.observation(box<float>({2})).action(discrete(2)).info("x", scalar<float>());
  CHECK_THROWS(finished(spec, true), std::invalid_argument, "declared the info \"x\"");
  CHECK_EQUAL(finished(spec).num_info, 1);
}
