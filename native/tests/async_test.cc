// post() + take(): every env that was posted comes back exactly once, with its own row.
#include <algorithm>

#include "tests/test_envs.h"

using namespace test;

namespace {

// Posts idle envs in pieces of random size, holds some back, takes batches, until about num_rows came.
void churn(Bench<Marked>& bench, std::int64_t num_rows, std::minstd_rand& random) {
  const std::int64_t batch_size = bench.engine->options().batch_size;
  std::vector<std::int32_t> idle = bench.all();
  std::int64_t num_in_flight = 0;
  const auto post = [&](Request request, std::size_t count) {
    const std::vector<std::int32_t> ids(idle.end() - count, idle.end());
    idle.resize(idle.size() - count);
    bench.expect(request, ids);
    bench.engine->post(request, ids.data(), count);
    num_in_flight += static_cast<std::int64_t>(count);
  };
  post(Request::reset, idle.size());
  for (std::int64_t taken = 0; taken < num_rows; taken += batch_size) {
    Batch batch(bench.engine->take(-1));
    CHECK_EQUAL(batch->num_rows, batch_size);
    bench.check_any_order(*batch);
    num_in_flight -= batch_size;
    idle.insert(idle.end(), batch->env_ids(), batch->env_ids() + batch_size);
    std::shuffle(idle.begin(), idle.end(), random);
    // At least what the next take() needs; above that, some stay behind now and then.
    while (!idle.empty() && (num_in_flight < batch_size || random() % 4 != 0)) {
      post(random() % 8 == 0 ? Request::reset : Request::step, 1 + random() % idle.size());
    }
  }
  CHECK(bench.engine->drop_pending(-1));
  bench.forget();
}

}  // namespace

TEST(every_posted_env_comes_back_once) {
  std::minstd_rand random(5);
  constexpr int kNumEnvs = 31;
  for (const int num_threads : {1, 2, 4}) {
    for (const int batch_size : {1, 7, kNumEnvs - 1}) {
      // Cheap: mostly run by the caller. Expensive: by the thread pool, in any order.
      for (const int burn_ns : {0, 30'000}) {
        Bench<Marked> bench(options_of(kNumEnvs, batch_size, num_threads), {.burn_ns = burn_ns});
        churn(bench, 20'000, random);
        churn(bench, 3'000, random);
      }
    }
  }
}

TEST(ring_of_two_envs) {
  std::minstd_rand random(6);
  Bench<Marked> bench(options_of(2, 1, 2), {.burn_ns = 25'000});
  churn(bench, 8'000, random);
}

TEST(take_gives_nothing_until_there_is_a_batch) {
  Bench<Gated> bench(options_of(6, 3, 2));
  bench.expect(Request::reset, bench.all());
  bench.engine->post(Request::reset, bench.all().data(), 6);
  for (int i = 0; i < 2; ++i) bench.check_any_order(*Batch(bench.engine->take(-1)));
  CHECK(bench.engine->take(0) == nullptr);
  Gated::close_gate();
  bench.expect(Request::step, bench.all());
  bench.engine->post(Request::step, bench.all().data(), 6);
  CHECK(bench.engine->take(0) == nullptr);
  CHECK(bench.engine->take(1'000'000) == nullptr);
  Gated::is_open = true;
  for (int i = 0; i < 2; ++i) bench.check_any_order(*Batch(bench.engine->take(-1)));
  CHECK(bench.engine->take(0) == nullptr);
}

TEST(a_slow_env_holds_up_no_other) {
  Bench<Gated> bench(options_of(4, 1, 2));
  bench.expect(Request::reset, bench.all());
  bench.engine->post(Request::reset, bench.all().data(), 4);
  for (int i = 0; i < 4; ++i) bench.check_any_order(*Batch(bench.engine->take(-1)));
  Gated::close_gate();
  bench.expect(Request::step, {0});
  const std::int32_t slow = 0;
  bench.engine->post(Request::step, &slow, 1);
  wait_for([] { return Gated::num_entered == 1; });
  for (int i = 0; i < 200; ++i) {
    const std::int32_t quick = 1 + i % 3;
    bench.expect(Request::reset, {quick});
    bench.engine->post(Request::reset, &quick, 1);
    Batch batch(bench.engine->take(-1));
    CHECK_EQUAL(batch->env_ids()[0], quick);
    bench.check_any_order(*batch);
  }
  Gated::is_open = true;
  Batch batch(bench.engine->take(-1));
  CHECK_EQUAL(batch->env_ids()[0], slow);
  bench.check_any_order(*batch);
}

TEST(an_ordered_reset_beside_envs_in_flight) {
  // The synchronous way stays open to an asynchronous engine: reset(env_ids) of idle envs.
  std::minstd_rand random(7);
  Bench<Marked> bench(options_of(12, 4, 3), {.burn_ns = 30'000});
  bench.run_and_check(Request::reset, nullptr);
  const std::vector<std::int32_t> posted = {0, 2, 4, 6, 8, 10, 11, 9}, ordered = {7, 1, 5, 3};
  for (int i = 0; i < 500; ++i) {
    bench.expect(Request::step, posted);
    bench.engine->post(Request::step, posted.data(), posted.size());
    bench.run_and_check(i % 2 == 0 ? Request::reset : Request::step, &ordered);
    for (int k = 0; k < 2; ++k) bench.check_any_order(*Batch(bench.engine->take(-1)));
  }
}

TEST(drop_pending_throws_away_what_is_in_flight) {
  std::minstd_rand random(8);
  for (const int batch_size : {1, 5, 10}) {
    Bench<Marked> bench(options_of(11, batch_size, 2), {.burn_ns = 20'000});
    bench.run_and_check(Request::reset, nullptr);
    for (int i = 0; i < 300; ++i) {
      // Resets: their rows do not depend on the steps that nobody saw.
      bench.engine->post(Request::step, bench.all().data(), random() % 12);
      CHECK(bench.engine->drop_pending(-1));
      CHECK(bench.engine->take(0) == nullptr);
      const auto ids = random_subset(11, batch_size, random);
      bench.expect(Request::reset, ids);
      bench.engine->post(Request::reset, ids.data(), ids.size());
      bench.check_any_order(*Batch(bench.engine->take(-1)));
    }
  }
}

TEST(drop_pending_gives_up_after_its_time_and_can_be_asked_again) {
  for (const bool is_async : {false, true}) {
    Bench<Gated> bench(options_of(6, is_async ? 2 : 6, 2));
    bench.run_and_check(Request::reset, nullptr);
    Gated::close_gate();
    if (is_async) {
      bench.engine->post(Request::step, bench.all().data(), 6);
    } else {
      bench.engine->start(Request::step, nullptr, 6);
    }
    CHECK(!bench.engine->drop_pending(0));
    CHECK(!bench.engine->drop_pending(1'000'000));
    Gated::is_open = true;
    CHECK(bench.engine->drop_pending(-1));
    bench.run_and_check(Request::reset, nullptr);
  }
}

TEST(several_asynchronous_engines_at_once) {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([caller] {
      std::minstd_rand random(20 + caller);
      Bench<Marked> bench(options_of(9, 1 + 3 * caller, 2), {.burn_ns = 15'000});
      churn(bench, 4'000, random);
    });
  }
  for (std::thread& caller : callers) caller.join();
}
