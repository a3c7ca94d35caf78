// The end of an engine: close() with work in flight, with an env that is stuck, threads that come and go.
#include <array>

#include "engine/thread_pool.h"
#include "tests/test_envs.h"

using namespace test;
using envfleet::engine::ThreadPool;

TEST(a_thread_pool_stops_at_any_moment) {
  // A thread that looked at the stop flag before the notice slept for ever, about once in 20,000 rounds.
  for (const bool may_spin : {false, true}) {
    for (int round = 0; round < 5000; ++round) {
      ThreadPool pool(2, -1, may_spin);
      std::atomic<int> num_asked{0};
      pool.start([&](int) {
        ++num_asked;
        return false;
      });
      // The moment varies from before a thread's first look to after it fell asleep.
      pool.notify(round % 3);
      wait_for([&] { return num_asked >= round % 3; });
      if (round % 5 == 0) pool.notify(1);
      CHECK(pool.stop(-1));
    }
  }
}

TEST(a_thread_pool_sees_all_work_that_it_is_notified_of) {
  for (const bool may_spin : {false, true}) {
    ThreadPool pool(3, -1, may_spin);
    std::atomic<int> num_waiting{0}, num_done{0};
    pool.start([&](int) {
      int waiting = num_waiting.load();
      while (waiting > 0 && !num_waiting.compare_exchange_weak(waiting, waiting - 1)) {
      }
      if (waiting > 0) ++num_done;
      return waiting > 0;
    });
    for (int i = 1; i <= 10'000; ++i) {
      ++num_waiting;
      pool.notify(1 + i % 3);
      wait_for([&] { return num_done == i; });
    }
    CHECK(pool.stop(-1));
  }
}

TEST(threads_that_are_notified_wake_each_other) {
  // 7 threads that sleep: notify() itself wakes two of them.
  ThreadPool pool(7, -1, false);
  std::array<std::atomic<int>, 7> seen{};
  std::atomic<int> round{0};
  pool.start([&](int index) {
    // Also a thread that finds nothing: it may have been early, and seen the round before it was notified of it.
    pool.wake_more();
    return seen[index].exchange(round) != round;
  });
  for (int i = 1; i <= 3000; ++i) {
    const int num_threads = 1 + i % 7;
    round = i;
    pool.notify(num_threads);
    wait_for([&] {
      for (int index = 0; index < num_threads; ++index) {
        if (seen[index] != i) return false;
      }
      return true;
    });
  }
  CHECK(pool.stop(-1));
}

TEST(close_with_work_in_flight) {
  for (int num_threads = 1; num_threads <= 3; ++num_threads) {
    for (int round = 0; round < 150; ++round) {
      const bool is_async = round % 2 == 1;
      const auto engine = make_engine<Marked>(options_of(8, is_async ? 3 : 8, num_threads), {.burn_ns = 30'000});
      Batch(engine->run(Request::reset, nullptr, 8));
      const std::int32_t ids[] = {7, 6, 5, 4, 3, 2, 1, 0};
      if (is_async) {
        engine->post(Request::step, ids, 8);
        if (round % 3 == 0) Batch(engine->take(-1));
      } else {
        engine->start(Request::step, ids, 8);
      }
      CHECK(engine->close(-1));
      CHECK(engine->is_closed());
    }
  }
}

TEST(close_without_any_work) {
  for (int round = 0; round < 50; ++round) {
    const auto engine = make_engine<Marked>(options_of(4, round % 2 == 0 ? 4 : 2, 2));
    CHECK(engine->close(-1));
  }
}

TEST(close_leaves_a_stuck_env_behind) {
  for (const bool is_async : {false, true}) {
    for (int round = 0; round < 10; ++round) {
      auto engine = make_engine<Gated>(options_of(6, is_async ? 2 : 6, 2));
      CHECK_EQUAL(Gated::num_alive.load(), 6);
      Batch(engine->run(Request::reset, nullptr, 6));
      Gated::close_gate();
      const std::int32_t ids[] = {0, 1, 2, 3, 4, 5};
      if (is_async) {
        engine->post(Request::step, ids, 6);
      } else {
        engine->start(Request::step, ids, 6);
      }
      wait_for([] { return Gated::num_entered >= 1; });
      CHECK(!engine->close(2'000'000));
      engine.reset();
      CHECK_EQUAL(Gated::num_alive.load(), 6);  // the thread inside holds on to its env
      Gated::is_open = true;
      wait_for([] { return Gated::num_alive == 0; });
    }
  }
}

TEST(close_takes_back_what_was_not_begun) {
  auto engine = make_engine<Gated>(options_of(8, 8, 1));
  Batch(engine->run(Request::reset, nullptr, 8));
  Gated::close_gate();
  engine->start(Request::step, nullptr, 8);
  wait_for([] { return Gated::num_entered == 1; });
  CHECK(!engine->close(0));
  engine.reset();
  Gated::is_open = true;
  wait_for([] { return Gated::num_alive == 0; });
  CHECK_EQUAL(Gated::num_entered.load(), 1);  // not the other seven
}
