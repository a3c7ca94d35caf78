// How long an idle thread spins, decided at given times, and that it sees work and stops when it is told to.
#include "engine/adaptive_spin.h"

#include "tests/check.h"

using envfleet::engine::AdaptiveSpin;
using envfleet::engine::SpinBudget;

namespace {

constexpr std::int64_t kMillisecond = 1'000'000, kMinute = 60'000 * kMillisecond;

// Idles until nothing is left of the budget, each time for longer than any spin.
void never_find_work(SpinBudget& budget, std::int64_t& now) {
  for (int i = 0; i < 20; ++i) {
    if (budget.begin(now += kMillisecond) > 0) budget.found_nothing();
  }
}

}  // namespace

TEST(a_thread_that_finds_work_spins_as_long_as_it_may) {
  SpinBudget budget;
  CHECK_EQUAL(budget.begin(0), SpinBudget::kLongest);
  budget.found_nothing();
  CHECK(budget.begin(kMillisecond) < SpinBudget::kLongest);
  budget.found_work();
  CHECK_EQUAL(budget.begin(2 * kMillisecond), SpinBudget::kLongest);
}

TEST(a_thread_that_finds_nothing_sleeps_at_once_and_tries_again_now_and_then) {
  SpinBudget budget;
  std::int64_t now = 0;
  never_find_work(budget, now);
  int num_spins = 0;
  for (int i = 0; i < 10 * SpinBudget::kRetryEvery; ++i) num_spins += budget.begin(now += kMillisecond) > 0 ? 1 : 0;
  CHECK_EQUAL(num_spins, 10);
}

TEST(a_wake_up_that_came_soon_makes_the_next_spin_long) {
  SpinBudget budget;
  std::int64_t now = 0;
  never_find_work(budget, now);
  budget.begin(now);
  budget.woken(now + 20 * kMillisecond);
  CHECK_EQUAL(budget.begin(now += 20 * kMillisecond), SpinBudget::kBrief);
  budget.woken(now + kMillisecond / 2);
  CHECK_EQUAL(budget.begin(now += kMillisecond), SpinBudget::kLongest);
}

TEST(a_thread_that_lost_its_core_spins_briefly_for_a_while) {
  SpinBudget budget;
  budget.begin(kMinute);
  budget.lost_core(kMinute);
  budget.found_work();
  CHECK_EQUAL(budget.begin(kMinute + 1), SpinBudget::kBrief);
  CHECK_EQUAL(budget.begin(kMinute + SpinBudget::kSharedFor - 1), SpinBudget::kBrief);
  CHECK_EQUAL(budget.begin(kMinute + SpinBudget::kSharedFor), SpinBudget::kLongest);
}

TEST(a_spin_ends_with_work_or_when_it_may_not_go_on) {
  const auto always = [] { return true; };
  const auto never = [] { return false; };
  int num_looks = 0;
  const auto third_time = [&] { return ++num_looks == 3; };
  AdaptiveSpin spin(true, 0);
  CHECK(spin.watch(third_time, always));
  CHECK_EQUAL(num_looks, 3);
  CHECK(!spin.watch(never, never));
  CHECK(!spin.watch(never, always));  // ends by itself
  AdaptiveSpin forbidden(false, 0);
  CHECK(!forbidden.watch(always, always));
}
