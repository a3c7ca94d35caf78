// ThreadCountController against machines that are made up: how long a batch takes with so many threads is a function
// of the thread count and of the (simulated) time.
#include "engine/thread_count.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <random>
#include <utility>

#include "tests/check.h"

using envfleet::engine::ThreadCountController;

namespace {

// Nanoseconds that a batch takes with so many threads at this time.
using Machine = std::function<double(int num_threads, std::int64_t now_ns)>;

constexpr std::int64_t kMillisecond = 1'000'000;

struct Simulation {
  ThreadCountController controller;
  std::int64_t num_rows;
  double ns_per_row;
  Machine machine;
  std::int64_t now_ns = 0;

  // Runs batches for so long. Returns the rows per nanosecond.
  double run(std::int64_t duration_ns) {
    const std::int64_t end_ns = now_ns + duration_ns;
    const std::int64_t begin_ns = now_ns;
    std::int64_t num_batches = 0;
    while (now_ns < end_ns) {
      const int num_threads = controller.choose(num_rows, ns_per_row);
      const auto batch_ns = static_cast<std::int64_t>(machine(num_threads, now_ns));
      now_ns += batch_ns;
      controller.record(num_rows, num_threads, batch_ns, now_ns);
      now_ns += 3'000;  // the caller's own work between batches
      ++num_batches;
    }
    return static_cast<double>(num_batches * num_rows) / static_cast<double>(now_ns - begin_ns);
  }

  double best(int max_threads) const {
    double best_ns = 1e300;
    for (int count = 1; count <= max_threads; ++count) best_ns = std::min(best_ns, machine(count, now_ns));
    return static_cast<double>(num_rows) / (best_ns + 3'000);
  }
};

// 16 cores, some of which other programs use all the time. A thread that shares a core with one of them has it for a time
// slice, then loses it for one. Blocks of a thread that has no core are taken by the others; one that loses its core within
// a batch holds up the batch until it has it back.
class SharedCores {
 public:
  SharedCores(double total_ns, double slice_ns) : total_ns_(total_ns), slice_ns_(slice_ns) {}

  int num_shared = 0;

  double operator()(int num_threads, std::int64_t now_ns) {
    const int num_at_risk = std::max(0, num_threads - (16 - num_shared));
    int num_waiting = 0;
    for (int i = 0; i < num_at_risk; ++i) num_waiting += has_core(i, now_ns) ? 0 : 1;
    double end_ns = now_ns + total_ns_ / (num_threads - num_waiting) + 2e3 + 100.0 * num_threads;
    for (int i = 0; i < num_at_risk; ++i) {
      Neighbour& own = neighbours_[i];
      if (!own.is_away || own.changes_ns >= end_ns) continue;
      has_core(i, own.changes_ns);
      end_ns = std::max(end_ns, own.changes_ns + total_ns_ / num_threads / 8);
    }
    return end_ns - now_ns;
  }

 private:
  struct Neighbour {
    bool is_away = true;  // and the thread has the core
    double changes_ns = 0;
  };

  bool has_core(int index, double now_ns) {
    Neighbour& own = neighbours_[index];
    while (own.changes_ns <= now_ns) {
      own.is_away = !own.is_away;
      own.changes_ns += std::uniform_real_distribution<double>(0.5, 1.5)(random_) * slice_ns_;
    }
    return own.is_away;
  }

  double total_ns_, slice_ns_;
  std::array<Neighbour, 16> neighbours_{};
  std::mt19937 random_{4};
};

// A host that takes each of 16 cores away now and then. How long a batch waits for them hardly depends on the thread count:
// fewer threads take longer.
class LentCores {
 public:
  LentCores(double total_ns, double lent_ns, double away_ns) : total_ns_(total_ns), lent_ns_(lent_ns), away_ns_(away_ns) {
    for (Core& core : cores_) core.changes_ns = draw(lent_ns_);
  }

  double operator()(int num_threads, std::int64_t now_ns) {
    double start_ns = static_cast<double>(now_ns);
    if (!is_lent(0, start_ns)) start_ns = cores_[0].changes_ns;  // the caller's
    int num_waiting = 0;
    for (int i = 1; i < num_threads; ++i) num_waiting += is_lent(i, start_ns) ? 0 : 1;
    double end_ns = start_ns + total_ns_ / (num_threads - num_waiting) + 2e3 + 100.0 * num_threads;
    for (int i = 0; i < num_threads; ++i) {
      if (!is_lent(i, start_ns) || cores_[i].changes_ns >= end_ns) continue;
      is_lent(i, cores_[i].changes_ns);
      end_ns = std::max(end_ns, cores_[i].changes_ns + total_ns_ / num_threads / 8);
    }
    return end_ns - static_cast<double>(now_ns);
  }

 private:
  struct Core {
    bool is_lent = true;
    double changes_ns = 0;
  };

  double draw(double mean_ns) { return std::exponential_distribution<double>(1 / mean_ns)(random_); }
  bool is_lent(int index, double now_ns) {
    Core& core = cores_[index];
    while (core.changes_ns <= now_ns) {
      core.is_lent = !core.is_lent;
      core.changes_ns += draw(core.is_lent ? lent_ns_ : away_ns_);
    }
    return core.is_lent;
  }

  double total_ns_, lent_ns_, away_ns_;
  std::array<Core, 16> cores_{};
  std::mt19937 random_{5};
};

// Of a machine at its beginning.
template <class Machine>
double best_rate(const Machine& machine) {
  double best = 0;
  for (int count = 1; count <= 16; ++count) {
    Machine own = machine;
    double now_ns = 0;
    int num_batches = 0;
    for (; now_ns < 1000.0 * kMillisecond; ++num_batches) now_ns += own(count, static_cast<std::int64_t>(now_ns)) + 3e3;
    best = std::max(best, 8192 * num_batches / now_ns);
  }
  return best;
}

// Work that divides evenly, a start that costs more the more threads take part.
Machine even(double total_ns, double start_ns) {
  return [=](int num_threads, std::int64_t) {
    return total_ns / num_threads + (num_threads > 1 ? start_ns + 0.1 * start_ns * num_threads : 0);
  };
}

}  // namespace

TEST(thread_counts_go_from_one_to_all) {
  for (int max_threads : {1, 2, 3, 4, 15, 16, 64, 128}) {
    const ThreadCountController controller(max_threads);
    CHECK(controller.counts().front() == 1);
    CHECK(controller.counts().back() == max_threads);
    for (std::size_t i = 1; i < controller.counts().size(); ++i) CHECK(controller.counts()[i] > controller.counts()[i - 1]);
  }
}

TEST(a_batch_that_ends_before_a_thread_is_awake_stays_with_the_caller) {
  ThreadCountController controller(16);
  CHECK(controller.choose(64, 20.0) == 1);
  CHECK(controller.choose(64, 0.0) == 16);  // of unknown cost
}

TEST(the_controller_finds_the_best_count) {
  for (const double total_ns : {20e3, 50e3, 400e3, 3e6, 60e6}) {
    for (const double start_ns : {200.0, 2e3, 10e3}) {
      Simulation simulation{ThreadCountController(16), 8192, total_ns / 8192, even(total_ns, start_ns)};
      simulation.run(std::max<std::int64_t>(10 * kMillisecond, 20 * static_cast<std::int64_t>(total_ns)));
      const double found =
          simulation.run(std::max<std::int64_t>(200 * kMillisecond, 100 * static_cast<std::int64_t>(total_ns)));
      CHECK(found > 0.93 * simulation.best(16));
    }
  }
}

TEST(a_core_is_left_free_when_that_is_faster) {
  // With all 16 threads one of them always shares its core.
  Simulation simulation{ThreadCountController(16), 8192, 40.0, [](int num_threads, std::int64_t) {
                          return num_threads == 16 ? 330e3 / 8 : 330e3 / num_threads + 2e3;
                        }};
  simulation.run(20 * kMillisecond);
  CHECK(simulation.run(200 * kMillisecond) > 0.95 * simulation.best(16));
}

TEST(a_disturbance_is_forgotten_within_tens_of_milliseconds) {
  // For 50 ms a batch takes 20 times as long with more than two threads; then the machine is quiet again.
  const Machine quiet = even(330e3, 2e3);
  Simulation simulation{ThreadCountController(16), 8192, 40.0, [&](int num_threads, std::int64_t now_ns) {
                          const bool is_disturbed = now_ns / (50 * kMillisecond) == 2;
                          return quiet(num_threads, now_ns) * (is_disturbed && num_threads > 2 ? 20 : 1);
                        }};
  simulation.run(100 * kMillisecond);
  const double during = simulation.run(50 * kMillisecond);
  CHECK(during > 0.5 * 8192 / (330e3 / 2));  // most of the time with two threads
  simulation.run(30 * kMillisecond);         // to forget
  CHECK(simulation.run(50 * kMillisecond) > 0.9 * simulation.best(16));
}

TEST(single_slow_batches_change_nothing) {
  // One batch of a hundred is held up by a thread that lost its core for 4 ms.
  std::mt19937 random(1);
  const Machine quiet = even(330e3, 2e3);
  Simulation simulation{ThreadCountController(16), 8192, 40.0, [&](int num_threads, std::int64_t now_ns) {
                          return quiet(num_threads, now_ns) + (random() % 100 == 0 ? 4e6 : 0);
                        }};
  simulation.run(50 * kMillisecond);
  // Compared with the best count under the same disturbance.
  const double possible = 8192 / (quiet(16, 0) + 4e6 / 100 + 3'000);
  CHECK(simulation.run(1000 * kMillisecond) > 0.85 * possible);
}

TEST(noise_costs_little) {
  std::mt19937 random(2);
  for (const double sigma : {0.2, 0.4}) {
    std::lognormal_distribution<double> noise(0.0, sigma);
    for (const double total_ns : {40e3, 330e3, 3e6, 16e6}) {
      const Machine quiet = even(total_ns, 2e3);
      Simulation simulation{ThreadCountController(16), 8192, total_ns / 8192, [&](int num_threads, std::int64_t now_ns) {
                              return quiet(num_threads, now_ns) * noise(random);
                            }};
      simulation.run(200 * kMillisecond);
      double best = 0;
      for (int count = 1; count <= 16; ++count) {
        best = std::max(best, 8192 / (quiet(count, 0) * std::exp(sigma * sigma / 2) + 3'000));
      }
      CHECK(simulation.run(2000 * kMillisecond) > 0.88 * best);
    }
  }
}

TEST(threads_that_lose_their_cores_are_left_out) {
  // A host that lends 10 cores for 16: each further thread makes it likelier that a batch waits for one of them.
  std::mt19937 random(3);
  std::exponential_distribution<double> delay(1 / 3e5);
  const auto duration = [&](double total_ns, int num_threads) {
    double ns = total_ns / num_threads + (num_threads > 1 ? 2e3 + 100.0 * num_threads : 0);
    const double exponent = num_threads > 10 ? 2.0 * num_threads : 0.3 * num_threads;
    const double chance = 1 - std::pow(1 - std::min(0.5, ns / 2e6), exponent);
    if (std::uniform_real_distribution<double>()(random) < chance) ns += delay(random);
    return ns;
  };
  for (const double total_ns : {45e3, 370e3, 3e6}) {
    const auto rate = [&](int num_threads) {
      double sum = 0;
      for (int i = 0; i < 20'000; ++i) sum += duration(total_ns, num_threads) + 3'000;
      return 8192.0 * 20'000 / sum;
    };
    double best = 0;
    for (int count = 1; count <= 16; ++count) best = std::max(best, rate(count));
    Simulation simulation{ThreadCountController(16), 8192, total_ns / 8192,
                          [&](int num_threads, std::int64_t) { return duration(total_ns, num_threads); }};
    simulation.run(200 * kMillisecond);
    CHECK(simulation.run(2000 * kMillisecond) > 0.85 * best);
  }
}

TEST(busy_neighbours_are_avoided) {
  // 12 free cores: with more threads than that, a batch waits for one that shares its core.
  Simulation simulation{ThreadCountController(16), 65536, 40.0, [](int num_threads, std::int64_t) {
                          const double total_ns = 65536 * 40.0;
                          return num_threads <= 12 ? total_ns / num_threads + 2e3 : total_ns / num_threads * 2;
                        }};
  simulation.run(50 * kMillisecond);
  CHECK(simulation.run(500 * kMillisecond) > 0.9 * simulation.best(16));
}

TEST(threads_that_hold_up_few_batches_for_long_are_left_out) {
  for (const double total_ns : {100e3, 900e3, 4.2e6}) {
    for (const double slice_ns : {1.5e6, 3e6}) {
      for (const int num_shared : {1, 4, 8}) {
        SharedCores machine(total_ns, slice_ns);
        machine.num_shared = num_shared;
        const double best = best_rate(machine);
        Simulation simulation{ThreadCountController(16), 8192, total_ns / 8192, std::ref(machine)};
        simulation.run(300 * kMillisecond);
        CHECK(simulation.run(2000 * kMillisecond) > 0.85 * best);
      }
    }
  }
}

TEST(threads_stay_where_batches_are_held_up_with_any_count) {
  for (const double total_ns : {100e3, 900e3, 4.2e6}) {
    for (const auto& [lent_ns, away_ns] : {std::pair{20e6, 2e6}, {50e6, 5e6}, {10e6, 0.3e6}, {100e6, 1e6}}) {
      LentCores machine(total_ns, lent_ns, away_ns);
      const double best = best_rate(machine);
      Simulation simulation{ThreadCountController(16), 8192, total_ns / 8192, std::ref(machine)};
      simulation.run(300 * kMillisecond);
      CHECK(simulation.run(3000 * kMillisecond) > 0.65 * best);
    }
  }
}

TEST(all_threads_come_back_when_the_other_programs_have_ended) {
  for (const double total_ns : {100e3, 900e3, 4.2e6}) {
    SharedCores machine(total_ns, 3e6);
    Simulation simulation{ThreadCountController(16), 8192, total_ns / 8192, std::ref(machine)};
    for (int i = 0; i < 3; ++i) {
      machine.num_shared = 4;
      simulation.run(500 * kMillisecond);
      machine.num_shared = 0;
      simulation.run(200 * kMillisecond);
      CHECK(simulation.run(300 * kMillisecond) > 0.9 * best_rate(machine));
    }
  }
}

TEST(slow_batches_are_not_given_to_few_threads) {
  // 64 envs of 250 us: a trial with one thread would take 16 batches' time.
  std::int64_t worst = 0;
  Simulation simulation{ThreadCountController(16), 64, 250e3, [&](int num_threads, std::int64_t now_ns) {
                          if (now_ns > 0) worst = std::max<std::int64_t>(worst, 16 / num_threads);
                          return 64 * 250e3 / num_threads + 5e3;
                        }};
  simulation.run(2000 * kMillisecond);
  CHECK(worst <= 3);
  CHECK(simulation.run(2000 * kMillisecond) > 0.95 * simulation.best(16));
}
