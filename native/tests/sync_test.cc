// A batch in a fixed order: run(), start() + finish(), by any number of threads.
#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/test_envs.h"

using namespace test;

namespace {

EngineOptions sync_options(int num_envs, int num_threads) {
  EngineOptions options;
  options.num_envs = options.batch_size = num_envs;
  options.num_threads = num_threads;
  return options;
}

// Cheap envs run in the caller, expensive ones on the thread pool: the time that they burn decides.
constexpr int kBurns[] = {0, 2'000, 40'000};

}  // namespace

TEST(run_gives_every_env_its_row) {
  for (int num_threads = 1; num_threads <= 4; ++num_threads) {
    for (const int burn_ns : kBurns) {
      Bench<Marked> bench(sync_options(67, num_threads), {.burn_ns = burn_ns});
      bench.run_and_check(Request::reset, nullptr);
      for (int i = 0; i < 150; ++i) bench.run_and_check(Request::step, nullptr);
    }
  }
}

TEST(actions_are_checked_before_any_env_moves) {
  std::minstd_rand random(5);
  const auto check = [&](int num_envs, int num_threads, int burn_ns, int num_steps) {
    Bench<Marked> bench(sync_options(num_envs, num_threads), {.burn_ns = burn_ns});
    bench.run_and_check(Request::reset, nullptr);
    std::vector<std::int64_t> given(num_envs);
    for (int i = 0; i < num_steps; ++i) {
      auto ids = bench.all();
      const bool is_whole = random() % 2 == 0;
      if (!is_whole) std::shuffle(ids.begin(), ids.end(), random);
      bench.expect(Request::step, ids);
      for (int row = 0; row < num_envs; ++row) {
        std::int32_t action = 0;
        std::memcpy(&action, bench.engine->action_slot(ids[row]), sizeof(action));
        given[row] = action;
        bench.set_action(ids[row], -5);
      }
      const envfleet::engine::GivenActions actions{given.data(), EF_INT64, is_whole ? nullptr : ids.data(), num_envs};
      CHECK(bench.engine->accepts(actions));
      const auto refused = static_cast<std::size_t>(random() % (2 * num_envs));  // half of the time: none
      if (refused < given.size()) {
        const std::int64_t right = std::exchange(given[refused], 1000);
        CHECK(bench.engine->step(actions) == nullptr);
        CHECK(!bench.engine->has_ordered_batch());
        given[refused] = right;
      }
      Batch done(bench.engine->step(actions));
      bench.check_ordered(*done, ids);
    }
  };
  for (int num_threads = 1; num_threads <= 4; ++num_threads) {
    // Checked by the caller's thread and stored within the steps, or, if they are many, checked and stored by all threads.
    for (const int burn_ns : kBurns) check(67, num_threads, burn_ns, 150);
    check(40'000, num_threads, 0, 8);
  }
}

TEST(run_of_some_envs_keeps_their_order) {
  std::minstd_rand random(2);
  for (int num_threads = 1; num_threads <= 4; ++num_threads) {
    Bench<Marked> bench(sync_options(23, num_threads), {.burn_ns = 10'000});
    bench.run_and_check(Request::reset, nullptr);
    for (int i = 0; i < 400; ++i) {
      const auto ids = random_subset(23, 1 + random() % 23, random);
      bench.run_and_check(random() % 4 == 0 ? Request::reset : Request::step, &ids);
    }
  }
}

TEST(start_and_finish_give_what_run_gives) {
  std::minstd_rand random(3);
  for (int num_threads = 1; num_threads <= 4; ++num_threads) {
    for (const int burn_ns : kBurns) {
      Bench<Marked> bench(sync_options(29, num_threads), {.burn_ns = burn_ns});
      bench.run_and_check(Request::reset, nullptr);
      for (int i = 0; i < 200; ++i) {
        const auto ids = random_subset(29, 1 + random() % 29, random);
        bench.expect(Request::step, ids);
        bench.engine->start(Request::step, ids.data(), ids.size());
        CHECK(bench.engine->has_ordered_batch());
        Batch batch(bench.engine->finish(-1, random() % 2 == 0));
        CHECK(!bench.engine->has_ordered_batch());
        bench.check_ordered(*batch, ids);
      }
    }
  }
}

TEST(many_tiny_batches_lose_no_wake_up) {
  Bench<Marked> bench(sync_options(4, 3), {.burn_ns = 12'000});
  bench.run_and_check(Request::reset, nullptr);
  for (int i = 0; i < 4000; ++i) {
    bench.expect(Request::step, bench.all());
    bench.engine->start(Request::step, nullptr, 4);
    Batch batch(bench.engine->finish(-1, false));
    bench.check_ordered(*batch, bench.all());
  }
}

TEST(a_late_result_comes_later) {
  for (const int num_threads : {1, 3}) {
    Bench<Gated> bench(sync_options(5, num_threads), {.episode = 1000});  // a reset would not stop at the gate
    bench.run_and_check(Request::reset, nullptr);
    for (int i = 0; i < 20; ++i) {
      Gated::close_gate();
      bench.expect(Request::step, bench.all());
      // Not in this thread, which opens the gate: a thread that came only after that makes the env look quick.
      bench.engine->start(Request::step, nullptr, 5, false);
      wait_for([] { return Gated::num_entered >= 1; });
      CHECK(bench.engine->finish(0, false) == nullptr);
      CHECK(bench.engine->finish(1'000'000, false) == nullptr);
      CHECK(bench.engine->has_ordered_batch());
      Gated::is_open = true;
      Batch batch(bench.engine->finish(-1, false));
      bench.check_ordered(*batch, bench.all());
    }
  }
}

TEST(a_second_batch_is_refused_and_the_first_is_unharmed) {
  Bench<Gated> bench(sync_options(6, 2));
  bench.run_and_check(Request::reset, nullptr);
  Gated::close_gate();
  const std::vector<std::int32_t> first = {4, 1}, second = {0, 2};
  bench.expect(Request::step, first);
  bench.engine->start(Request::step, first.data(), 2);
  CHECK_THROWS(bench.engine->start(Request::step, second.data(), 2), std::logic_error,
               "finish() or drop_pending() it first");
  CHECK_THROWS(bench.engine->run(Request::step, second.data(), 2), std::logic_error, "finish() or drop_pending() it first");
  Gated::is_open = true;
  Batch batch(bench.engine->finish(-1, false));
  bench.check_ordered(*batch, first);
}

TEST(an_episode_that_ends_in_same_step_mode_keeps_its_last_row) {
  for (int num_threads = 1; num_threads <= 3; ++num_threads) {
    EngineOptions options = sync_options(17, num_threads);
    options.autoreset = EF_SAME_STEP;
    const auto engine = make_engine<Marked>(options, {.episode = 3, .burn_ns = 20'000});
    Batch(engine->run(Request::reset, nullptr, 17));
    for (int step = 1; step <= 30; ++step) {
      Batch batch(engine->run(Request::step, nullptr, 17));
      for (int row = 0; row < 17; ++row) {
        const auto* words = Bench<Marked>::obs<std::int32_t>(*batch, 0) + 3 * row;
        const bool ends = step % 3 == 0;
        CHECK_EQUAL(words[0], row);
        CHECK_EQUAL(words[1], ends ? 0 : step % 3);
        CHECK_EQUAL(batch->rows().terminated[row], ends ? 1 : 0);
        if (!ends) continue;
        const auto* last = static_cast<std::int32_t*>(batch->rows().final_obs[0]) + 3 * row;
        CHECK_EQUAL(last[0], row);
        CHECK_EQUAL(last[1], 3);
        CHECK_EQUAL(batch->rows().final_elapsed_step[row], 3);
      }
    }
    CHECK(engine->close(-1));
  }
}

TEST(observe_gives_the_last_rows_again) {
  Bench<Marked> bench(sync_options(11, 3), {.burn_ns = 20'000});
  bench.run_and_check(Request::reset, nullptr);
  bench.run_and_check(Request::step, nullptr);
  bench.run_and_check(Request::step, nullptr);
  Batch batch(bench.engine->run(Request::observe, nullptr, 11));
  for (int row = 0; row < 11; ++row) {
    CHECK_EQUAL(Bench<Marked>::obs<std::int32_t>(*batch, 0)[3 * row], row);
    CHECK_EQUAL(Bench<Marked>::obs<std::int32_t>(*batch, 0)[3 * row + 1], 2);
  }
}

TEST(several_engines_at_once) {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([caller] {
      for (int life = 0; life < 10; ++life) {
        Bench<Marked> bench(sync_options(13 + caller, 1 + caller % 3), {.burn_ns = 20'000});
        bench.run_and_check(Request::reset, nullptr);
        for (int i = 0; i < 40; ++i) bench.run_and_check(Request::step, nullptr);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(pinned_threads_work) {
  EngineOptions options = sync_options(16, 3);
  options.thread_affinity_offset = 0;
  Bench<Marked> bench(options, {.burn_ns = 20'000});
  bench.run_and_check(Request::reset, nullptr);
  for (int i = 0; i < 50; ++i) bench.run_and_check(Request::step, nullptr);
}
