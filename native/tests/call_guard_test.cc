// CallGuard: who gets in, who nests, and how closing goes on.
#include "engine/call_guard.h"

#include <thread>

#include "tests/check.h"

using envfleet::engine::CallGuard;
using Entry = CallGuard::Entry;

namespace {

template <class Body>
auto in_another_thread(Body&& body) {
  decltype(body()) result{};
  std::thread([&] { result = body(); }).join();
  return result;
}

}  // namespace

TEST(a_second_thread_is_turned_away) {
  CallGuard guard;
  CHECK(guard.enter_call() == Entry::inside);
  CHECK(in_another_thread([&] { return guard.enter_call(); }) == Entry::busy);
  CHECK(in_another_thread([&] { return guard.enter_part(); }) == Entry::busy);
  CHECK(in_another_thread([&] { return guard.enter_method(); }) == Entry::busy);
  CHECK(!guard.leave(Entry::inside));
  CHECK(in_another_thread([&] { return guard.enter_call(); }) == Entry::inside);
}

TEST(parts_nest_in_a_method_and_in_nothing_else) {
  CallGuard guard;
  CHECK(guard.enter_method() == Entry::inside);
  CHECK(guard.enter_method() == Entry::busy);  // a signal handler that calls the pool back
  CHECK(guard.enter_call() == Entry::busy);
  CHECK(guard.enter_part() == Entry::nested);
  CHECK(guard.enter_part() == Entry::busy);
  CHECK(!guard.leave(Entry::nested));
  CHECK(in_another_thread([&] { return guard.enter_part(); }) == Entry::busy);  // still held by the method
  CHECK(guard.enter_part() == Entry::nested);
  guard.leave(Entry::nested);
  CHECK(!guard.leave(Entry::inside));
  CHECK(guard.enter_part() == Entry::inside);
  CHECK(guard.enter_part() == Entry::busy);
  guard.leave(Entry::inside);
}

TEST(what_a_call_reserves_is_for_its_thread_until_that_calls_again) {
  CallGuard guard;
  CHECK(guard.enter_call() == Entry::inside);
  guard.reserve();
  guard.leave(Entry::inside);
  CHECK(in_another_thread([&] { return guard.enter_call(); }) == Entry::busy);
  CHECK(in_another_thread([&] { return guard.enter_method(); }) == Entry::busy);
  CHECK(guard.enter_method() == Entry::inside);
  guard.leave(Entry::inside);
  const Entry entry = in_another_thread([&] {
    const Entry found = guard.enter_call();
    guard.leave(found);
    return found;
  });
  CHECK(entry == Entry::inside);
}

TEST(closing_turns_new_calls_away_and_waits_for_the_present_one) {
  CallGuard guard;
  CHECK(guard.enter_method() == Entry::inside);
  in_another_thread([&] {
    guard.begin_close();
    CHECK(!guard.try_enter_to_end());
    CHECK(guard.enter_call() == Entry::closed);
    return 0;
  });
  CHECK(guard.enter_part() == Entry::closed);
  CHECK(!guard.is_cancelled());
  CHECK(!guard.leave(Entry::inside));
  CHECK(guard.try_enter_to_end());
  CHECK(guard.is_ending());
  CHECK(!in_another_thread([&] { return guard.try_enter_to_end(); }));
  guard.leave_end(true);
  CHECK(guard.is_ended());
  CHECK(guard.enter_call() == Entry::closed);
}

TEST(a_close_that_is_left_to_the_present_call_runs_when_it_leaves) {
  CallGuard guard;
  int num_runs = 0;
  CHECK(guard.enter_method() == Entry::inside);
  CHECK(guard.enter_part() == Entry::nested);
  guard.begin_close();
  guard.put_close([&] { ++num_runs; });
  CHECK(!guard.leave(Entry::nested));  // not before the whole method is over
  CHECK(guard.leave(Entry::inside));
  guard.take_close()();
  CHECK(guard.take_close() == nullptr);
  CHECK_EQUAL(num_runs, 1);
}

TEST(threads_that_race_for_it_are_never_inside_together) {
  CallGuard guard;
  int inside = 0;  // not atomic: ThreadSanitizer looks, too
  std::atomic<std::int64_t> num_entered{0};
  const auto work = [&] {
    for (int i = 0; i < 20'000; ++i) {
      const Entry entry = i % 2 == 0 ? guard.enter_method() : guard.enter_part();
      if (entry != Entry::inside) continue;
      CHECK_EQUAL(++inside, 1);
      --inside;
      guard.leave(entry);
      ++num_entered;
    }
  };
  std::thread one(work), other(work);
  one.join();
  other.join();
  CHECK(num_entered > 0);
}
