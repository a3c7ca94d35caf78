// The shared-memory queues between a caller and its workers: every request comes back exactly once, as its worker's row
// or as a lost row, whatever becomes of the workers meanwhile.
#include <algorithm>
#include <cinttypes>

#include "tests/queue_workers.h"

namespace {

using envfleet::engine::now_ns;
using namespace envfleet::shm;
using namespace queues;

struct RunOptions {
  std::int32_t num_envs = 8;
  std::int32_t num_workers = 2;
  std::int32_t batch_size = 8;  // below num_envs: rows in order of completion too
  std::int64_t step_timeout_ns = -1;
  bool may_spin = false;
  Disturbance disturbance;
  int kills_per_10000 = 0;  // chance per round that the caller kills a worker
};

// A caller that posts, waits, takes, kills and revives at random, and keeps its own record of what is pending.
template <class Workers>
class RandomRun {
 public:
  RandomRun(const RunOptions& options, unsigned seed)
      : options_(options),
        memory_(options.num_envs, options.num_workers),
        queue_(memory_.base, memory_.layout, options.may_spin, options.step_timeout_ns, kHourNs),
        workers_(memory_, queue_, options.disturbance, seed),
        random_(seed),
        pending_(options.num_envs),
        incarnation_(options.num_workers, 0) {
    for (std::int32_t worker = 0; worker < options.num_workers; ++worker) workers_.start(worker, 0);
  }

  void run(int num_rounds) {
    for (int round = 0; round < num_rounds; ++round) {
      if (chance(options_.kills_per_10000)) workers_.kill(draw(options_.num_workers));
      // Sometimes long after the death, sometimes before the caller collected what the death left behind.
      for (std::int32_t worker = 0; worker < options_.num_workers; ++worker) {
        if (queue_.is_dead(worker) && random_() % 3 == 0) revive(worker);
      }
      if (chance(500)) read_statistics();
      const bool is_async = options_.batch_size < options_.num_envs && random_() % 4 != 0;
      is_async ? run_async() : run_ordered();
    }
    drain();
    queue_.stop();
    workers_.end();
    check_counts();
  }

 private:
  struct Pending {
    bool is_pending = false;
    std::uint64_t token = 0;
    std::uint64_t incarnation = 0;  // of the worker it was posted to
  };

  std::int32_t draw(std::int32_t bound) { return static_cast<std::int32_t>(random_() % static_cast<unsigned>(bound)); }
  bool chance(int per_10000) { return random_() % 10'000 < static_cast<unsigned>(per_10000); }
  std::int64_t num_pending() const {
    return std::count_if(pending_.begin(), pending_.end(), [](const Pending& own) { return own.is_pending; });
  }
  std::vector<std::int32_t> random_idle() {
    std::vector<std::int32_t> idle;
    for (std::int32_t env_id = 0; env_id < options_.num_envs; ++env_id) {
      if (!pending_[env_id].is_pending) idle.push_back(env_id);
    }
    std::shuffle(idle.begin(), idle.end(), random_);
    if (!idle.empty()) idle.resize(1 + random_() % idle.size());
    return idle;
  }

  void post(const std::vector<std::int32_t>& env_ids) {
    for (const std::int32_t env_id : env_ids) {
      CHECK(!queue_.is_in_flight(env_id));
      const std::uint64_t incarnation = incarnation_[memory_.layout.worker_of(env_id)];
      pending_[env_id] = {true, ++num_posted_, incarnation};
      memory_.requests[env_id].write(num_posted_, incarnation);
      queue_.slot(env_id).op = kStep;
    }
    // Null stands for all envs in their order.
    const bool is_whole = std::ssize(env_ids) == options_.num_envs && std::is_sorted(env_ids.begin(), env_ids.end());
    queue_.post(is_whole ? nullptr : env_ids.data(), std::ssize(env_ids));
  }

  void take(std::int32_t env_id) {
    CHECK(queue_.is_in_flight(env_id) && queue_.is_collected(env_id));
    queue_.take(env_id);
    Pending& own = pending_[env_id];
    CHECK(own.is_pending);
    own.is_pending = false;
    const Slot& slot = queue_.slot(env_id);
    if (slot.kind == kLostRow) {
      CHECK(workers_.num_ended(memory_.layout.worker_of(env_id)) > own.incarnation);
      ++num_lost_;
      return;
    }
    const Message& row = memory_.rows[env_id];
    CHECK_EQUAL(slot.kind, kGoodRow);
    CHECK(row.is_whole());
    CHECK_EQUAL(row.token, own.token);
    CHECK_EQUAL(row.incarnation, own.incarnation);
    ++num_good_;
  }

  // As the bindings wait: false when the time is over.
  template <class Missing>
  bool wait_for(Missing&& missing, std::int64_t timeout_ns) {
    const std::int64_t deadline = timeout_ns < 0 ? -1 : now_ns() + timeout_ns;
    end_overdue();
    queue_.collect();
    while (missing() > 0) {
      const std::int64_t rest = deadline < 0 ? -1 : deadline - now_ns();
      if (deadline >= 0 && rest <= 0) return false;
      queue_.wait(missing(), rest, true);
      end_overdue();
      queue_.collect();
    }
    return true;
  }
  void end_overdue() {
    for (const std::int32_t worker : queue_.overdue()) workers_.kill(worker);
  }
  std::int64_t random_timeout() {
    const std::int64_t limits[] = {-1, -1, 0, 20'000, 1'000'000};
    return limits[random_() % std::size(limits)];
  }

  void run_ordered() {
    const std::vector<std::int32_t> env_ids = random_() % 3 == 0 ? all_if_idle() : random_idle();
    post(env_ids);
    const auto missing = [&] {
      return std::count_if(env_ids.begin(), env_ids.end(), [&](std::int32_t id) { return !queue_.is_collected(id); });
    };
    // A batch that is late is asked for again.
    while (!wait_for(missing, random_timeout())) {
    }
    for (const std::int32_t env_id : env_ids) take(env_id);
  }

  std::vector<std::int32_t> all_if_idle() {
    std::vector<std::int32_t> all;
    if (num_pending() > 0) return all;
    for (std::int32_t env_id = 0; env_id < options_.num_envs; ++env_id) all.push_back(env_id);
    return all;
  }

  void run_async() {
    do {
      post(random_idle());
    } while (num_pending() < options_.batch_size);
    if (!wait_for([&] { return options_.batch_size - queue_.num_collected(); }, random_timeout())) return;
    for (std::int32_t i = 0; i < options_.batch_size; ++i) take(queue_.first_collected());
  }

  // At any time, while workers count.
  void read_statistics() {
    for (std::int32_t env_id = 0; env_id < options_.num_envs; ++env_id) {
      const SlotStatistics& own = queue_.slot(env_id).statistics;
      CHECK(own.num_steps >= 0 && own.num_episodes >= 0 && own.current_return >= 0 && own.length_max >= 0);
    }
    for (std::int32_t worker = 0; worker < options_.num_workers; ++worker) {
      CHECK(memory_.layout.worker(memory_.base, worker).busy_ns >= 0);
    }
  }

  void revive(std::int32_t worker) {
    workers_.wait(worker);
    queue_.revive(worker);
    workers_.start(worker, ++incarnation_[worker]);
  }

  void drain() {
    wait_for([&] { return queue_.num_in_flight() - queue_.num_collected(); }, -1);
    while (queue_.num_collected() > 0) take(queue_.first_collected());
  }

  void check_counts() {
    CHECK_EQUAL(num_pending(), 0);
    CHECK_EQUAL(queue_.num_in_flight(), 0);
    CHECK_EQUAL(num_good_ + num_lost_, static_cast<std::int64_t>(num_posted_));
    std::int64_t num_finished = 0, num_deaths = 0;
    for (std::int32_t worker = 0; worker < options_.num_workers; ++worker) {
      num_finished += memory_.num_finished[worker].load();
      num_deaths += static_cast<std::int64_t>(incarnation_[worker]) + 1;
    }
    // Each row that a worker finished arrived as its row, also when the worker died right after.
    if (Workers::is_exact) CHECK_EQUAL(num_good_, num_finished);
    CHECK(num_good_ >= num_finished && num_good_ <= num_finished + num_deaths);
    std::printf("  %" PRId64 " rows, %" PRId64 " lost, %" PRId64 " incarnations\n", num_good_, num_lost_, num_deaths);
  }

  const RunOptions options_;
  SharedMemory memory_;
  CallerQueue queue_;
  Workers workers_;
  std::minstd_rand random_;
  std::vector<Pending> pending_;
  std::vector<std::uint64_t> incarnation_;
  std::uint64_t num_posted_ = 0;
  std::int64_t num_good_ = 0, num_lost_ = 0;
};

template <class Workers>
void run_at_random(RunOptions options, int num_rounds) {
  std::printf("  ENVFLEET_TEST_SEED=%u ENVFLEET_TEST_SCALE=%d\n", seed(), scale());
  std::minstd_rand random(seed());
  for (const std::int32_t num_workers : {1, 2, 5}) {
    for (const std::int32_t num_envs : {5, 12, 33}) {
      options.num_workers = num_workers;
      options.num_envs = num_envs;
      options.batch_size = 1 + static_cast<std::int32_t>(random() % static_cast<unsigned>(num_envs));
      options.may_spin = random() % 2 == 0;
      options.disturbance.num_cores = static_cast<int>(random() % 3);
      RandomRun<Workers>(options, static_cast<unsigned>(random())).run(num_rounds * scale());
    }
  }
}

// One worker, served by hand: for what depends on an exact order of events.
struct ByHand {
  explicit ByHand(std::int32_t num_envs, std::int64_t step_timeout_ns = -1)
      : memory(num_envs, 1), queue(memory.base, memory.layout, false, step_timeout_ns), worker(start()) {}

  WorkerQueue start() { return WorkerQueue(memory.base, memory.layout, 0, 0); }
  void post(std::vector<std::int32_t> env_ids) {
    for (const std::int32_t env_id : env_ids) queue.slot(env_id).kind = kGoodRow;
    queue.post(env_ids.data(), std::ssize(env_ids));
  }
  std::int32_t work() {
    CHECK(worker.has_request());
    const std::int32_t env_id = worker.take_request();
    worker.state().progress_ns.store(now_ns());
    worker.finish(env_id, now_ns());
    return env_id;
  }
  // What arrived, in its order; kind by kind.
  void expect_arrived(std::vector<std::int32_t> env_ids, RowKind kind) {
    queue.collect();
    CHECK_EQUAL(queue.num_collected(), std::ssize(env_ids));
    for (const std::int32_t env_id : env_ids) {
      CHECK_EQUAL(queue.first_collected(), env_id);
      CHECK_EQUAL(queue.slot(env_id).kind, kind);
      queue.take(env_id);
    }
  }
  void spend(std::int64_t ns) {
    for (const std::int64_t end = now_ns() + ns; now_ns() < end;) std::this_thread::yield();
  }

  SharedMemory memory;
  CallerQueue queue;
  WorkerQueue worker;
};

}  // namespace

TEST(every_request_comes_back_once) { run_at_random<ThreadWorkers>({}, 400); }

TEST(every_request_comes_back_once_when_workers_die) {
  RunOptions options;
  options.disturbance.deaths_per_10000 = 100;
  options.kills_per_10000 = 300;
  run_at_random<ThreadWorkers>(options, 400);
}

TEST(every_request_comes_back_once_when_workers_hang) {
  RunOptions options;
  options.disturbance.hangs_per_10000 = 20;
  options.disturbance.deaths_per_10000 = 20;
  options.step_timeout_ns = 2'000'000;
  run_at_random<ThreadWorkers>(options, 100);
}

TEST(every_request_comes_back_once_when_processes_are_killed) {
  if (kIsThreadSanitized) return;  // it does not follow a fork() of a process with threads
  RunOptions options;
  options.disturbance.deaths_per_10000 = 10;
  options.kills_per_10000 = 500;
  run_at_random<ProcessWorkers>(options, 200);
  options.disturbance.hangs_per_10000 = 10;
  options.step_timeout_ns = 2'000'000;
  run_at_random<ProcessWorkers>(options, 50);
}

TEST(every_request_comes_back_once_with_more_workers_than_a_word_has_bits) {
  RunOptions options;
  options.num_workers = 70;
  options.num_envs = 140;
  options.disturbance.deaths_per_10000 = 5;
  options.disturbance.num_cores = 2;
  for (const std::int32_t batch_size : {140, 3}) {
    options.batch_size = batch_size;
    RandomRun<ThreadWorkers>(options, seed()).run(60 * scale());
  }
}

TEST(a_worker_spins_only_while_every_awake_worker_can_have_a_core) {
  SharedMemory memory(70, 70);
  const WorkerSet asleep = memory.layout.asleep(memory.base);
  const WorkerQueue worker(memory.base, memory.layout, 0, 2), never(memory.base, memory.layout, 0, 0);
  CHECK(!worker.may_spin());
  for (std::int32_t other = 1; other < 69; ++other) asleep.add(other);
  CHECK(worker.may_spin());  // the last one, 69, is awake
  CHECK(!never.may_spin());
  asleep.remove(68);
  CHECK(!worker.may_spin());
  asleep.add(68);
  asleep.add(69);
  CHECK(worker.may_spin());
  CHECK(!never.may_spin());
}

TEST(a_worker_that_wakes_up_wakes_others) {
  SharedMemory memory(70, 70);
  CallerQueue queue(memory.base, memory.layout, false, -1);
  WorkerQueue first(memory.base, memory.layout, 0, 0);
  const WorkerSet to_wake = memory.layout.to_wake(memory.base);
  const auto num_wakeups = [&](std::int32_t worker) { return memory.layout.worker(memory.base, worker).wakeups.load(); };
  to_wake.add(1);
  to_wake.add(69);
  const std::int32_t env_id = 0;
  queue.post(&env_id, 1);
  first.sleep();
  CHECK(to_wake.is_empty());
  CHECK_EQUAL(num_wakeups(0), 0u);
  CHECK_EQUAL(num_wakeups(1), 1u);
  CHECK_EQUAL(num_wakeups(69), 1u);
}

TEST(a_post_wakes_some_workers_and_a_wait_the_rest) {
  constexpr std::int32_t kNumWorkers = 70;
  SharedMemory memory(kNumWorkers, kNumWorkers);
  CallerQueue queue(memory.base, memory.layout, false, -1);
  for (std::int32_t worker = 0; worker < kNumWorkers; ++worker) memory.layout.asleep(memory.base).add(worker);
  const auto num_woken = [&] {
    std::int32_t count = 0;
    for (std::int32_t worker = 0; worker < kNumWorkers; ++worker) {
      count += static_cast<std::int32_t>(memory.layout.worker(memory.base, worker).wakeups.load());
    }
    return count;
  };
  queue.post(nullptr, kNumWorkers);
  CHECK(num_woken() > 0 && num_woken() < kNumWorkers);
  CHECK(memory.layout.asleep(memory.base).is_empty());
  queue.wait(kNumWorkers, 1000, true);
  CHECK(memory.layout.to_wake(memory.base).is_empty());
  // Those that did not answer in time were woken once more.
  CHECK_EQUAL(num_woken(), 2 * kNumWorkers);
}

TEST(a_worker_that_nobody_woke_is_woken_when_another_dies) {
  SharedMemory memory(2, 2);
  CallerQueue queue(memory.base, memory.layout, false, -1);
  queue.post(nullptr, 2);
  const std::uint32_t before = memory.layout.worker(memory.base, 1).wakeups.load();
  queue.mark_dead(0);
  queue.collect();
  CHECK(memory.layout.worker(memory.base, 1).wakeups.load() > before);
}

TEST(a_sleeping_worker_is_woken_once_for_several_requests) {
  SharedMemory memory(2, 1);
  CallerQueue queue(memory.base, memory.layout, false, -1);
  memory.layout.asleep(memory.base).add(0);
  for (const std::int32_t env_id : {0, 1}) queue.post(&env_id, 1);
  CHECK_EQUAL(memory.layout.worker(memory.base, 0).wakeups.load(), 1u);
}

TEST(a_worker_revived_before_its_rows_were_collected_loses_none) {
  ByHand bench(4);
  bench.post({0, 1, 2, 3});
  bench.work();
  bench.worker.take_request();
  bench.queue.mark_dead(0);
  bench.queue.revive(0);
  bench.worker = bench.start();
  CHECK(!bench.worker.has_request());
  CHECK_EQUAL(bench.queue.num_collected(), 4);
  CHECK_EQUAL(bench.queue.slot(0).kind, kGoodRow);
  CHECK_EQUAL(bench.queue.slot(1).kind, kLostRow);
  for (const std::int32_t env_id : {0, 1, 2, 3}) bench.queue.take(env_id);
  CHECK_EQUAL(bench.queue.num_in_flight(), 0);
  bench.post({2});
  bench.work();
  bench.expect_arrived({2}, kGoodRow);
}

TEST(a_row_finished_before_the_death_counts) {
  ByHand bench(3);
  bench.post({2, 0, 1});
  bench.work();
  bench.work();
  bench.queue.mark_dead(0);
  bench.queue.collect();
  CHECK_EQUAL(bench.queue.num_collected(), 3);
  CHECK_EQUAL(bench.queue.slot(2).kind, kGoodRow);
  CHECK_EQUAL(bench.queue.slot(0).kind, kGoodRow);
  CHECK_EQUAL(bench.queue.slot(1).kind, kLostRow);
}

TEST(what_is_posted_to_a_dead_worker_is_lost_at_once) {
  ByHand bench(3);
  bench.queue.mark_dead(0);
  bench.post({1, 2});
  bench.expect_arrived({1, 2}, kLostRow);
  CHECK(!bench.worker.has_request());
}

TEST(nonsense_from_a_worker_is_its_death) {
  // The number of rows, and of each row the env, as a worker gives them whose env wrote over its memory.
  struct Nonsense {
    std::uint32_t head;
    std::int32_t env_id;
  };
  const Nonsense all[] = {{5, 0}, {~0u, 0}, {1, 4}, {1, -1}, {1, INT32_MAX}, {1, 3}, {2, 0}};
  for (const Nonsense& nonsense : all) {
    ByHand bench(4);
    bench.post({0, 1, 2});
    for (std::uint32_t i = 0; i < bench.memory.layout.ring_size; ++i) {
      bench.memory.layout.finished(bench.memory.base, 0)[i] = {nonsense.env_id, i, 0};
    }
    bench.worker.state().done_head.store(nonsense.head);
    bench.memory.layout.ready(bench.memory.base).add(0);
    bench.queue.wait(3, -1, true);
    bench.queue.collect();
    CHECK(bench.queue.is_dead(0));
    CHECK_EQUAL(bench.queue.num_collected(), 3);
    for (int i = 0; i < 3; ++i) bench.queue.take(bench.queue.first_collected());
    bench.queue.revive(0);
    bench.worker = bench.start();
    bench.post({3});
    bench.work();
    bench.expect_arrived({3}, kGoodRow);
  }
}

TEST(an_overdue_worker_is_named_once) {
  constexpr std::int64_t kTimeoutNs = 1'000'000;
  ByHand bench(2, kTimeoutNs);
  bench.spend(2 * kTimeoutNs);
  CHECK(bench.queue.overdue().empty());  // nothing was asked of it
  bench.post({0, 1});
  bench.spend(2 * kTimeoutNs);
  CHECK_EQUAL(bench.queue.overdue().size(), 1u);
  CHECK(bench.queue.overdue().empty());
  bench.queue.mark_dead(0);
  bench.expect_arrived({0, 1}, kLostRow);
  bench.queue.revive(0);
  bench.worker = bench.start();
  bench.post({1});
  bench.spend(2 * kTimeoutNs);
  CHECK_EQUAL(bench.queue.overdue().size(), 1u);
}

TEST(a_worker_that_finished_in_time_is_not_overdue_when_the_caller_looks_late) {
  constexpr std::int64_t kTimeoutNs = 1'000'000;
  ByHand bench(2, kTimeoutNs);
  bench.post({0});
  bench.work();
  bench.spend(2 * kTimeoutNs);
  CHECK(bench.queue.overdue().empty());
  bench.expect_arrived({0}, kGoodRow);
}

TEST(more_requests_give_a_stuck_worker_no_more_time) {
  constexpr std::int64_t kTimeoutNs = 50'000'000;
  ByHand bench(2, kTimeoutNs);
  bench.post({0});
  CHECK_EQUAL(bench.worker.take_request(), 0);
  bench.spend(2 * kTimeoutNs);
  bench.post({1});
  CHECK_EQUAL(bench.queue.overdue().size(), 1u);
}

TEST(a_request_to_an_idle_worker_starts_its_time) {
  // Its last row was finished long ago, and not collected since.
  constexpr std::int64_t kTimeoutNs = 3600ll * 1'000'000'000;
  ByHand bench(2, kTimeoutNs);
  bench.post({0});
  bench.work();
  bench.worker.state().progress_ns.store(now_ns() - 2 * kTimeoutNs);
  bench.post({1});
  CHECK(bench.queue.overdue().empty());
}
