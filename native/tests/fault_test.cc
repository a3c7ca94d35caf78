// What an env throws: a fault and a completed row, cleared or with the env's last observation; the others go on.
#include <algorithm>

#include "tests/test_envs.h"

using namespace test;

namespace {

bool has_fault(const std::vector<Fault>& faults, std::int32_t id) {
  return std::any_of(faults.begin(), faults.end(), [&](const Fault& fault) { return fault.env_id == id; });
}

}  // namespace

TEST(step_that_throws) {
  for (int num_threads = 1; num_threads <= 3; ++num_threads) {
    Bench<Thrower> bench(options_of(9, 9, num_threads), {.burn_ns = 20'000});
    bench.run_and_check(Request::reset, nullptr);
    CHECK(!bench.engine->has_faults());
    for (int i = 0; i < 50; ++i) {
      bench.expect(Request::step, bench.all());
      bench.set_action(2, kThrowException);
      bench.set_action(5, kThrowNumber);
      Batch batch(bench.engine->run(Request::step, nullptr, 9));
      CHECK(bench.engine->has_faults());
      const std::vector<std::int32_t> actions(9, 0);
      CHECK(!bench.engine->accepts({actions.data(), EF_INT32, nullptr, 9}));
      for (int row = 0; row < 9; ++row) {
        if (row == 2 || row == 5) {
          bench.check_failed_row(*batch, row, row);
        } else {
          bench.check_row(*batch, row, row);
        }
      }
      CHECK_EQUAL(bench.engine->faults_of(*batch).size(), 2u);
      bench.engine->rebuild(2, EF_UNSTARTED);
      const auto of_five = bench.engine->faults_of(*batch);
      CHECK_EQUAL(of_five.size(), 1u);
      CHECK_EQUAL(of_five[0].env_id, 5);
      CHECK_EQUAL(of_five[0].method, EF_IN_STEP);
      CHECK(of_five[0].what == "threw something that is not a std::exception");
      bench.engine->rebuild(5, EF_UNSTARTED);
      CHECK(!bench.engine->has_faults());
      bench.run_and_check(Request::reset, nullptr);
    }
  }
}

TEST(reset_that_throws) {
  Bench<Thrower> bench(options_of(5, 5, 2), {.burn_ns = 20'000});
  bench.run_and_check(Request::reset, nullptr);
  bench.engine->set_reset_options({{"throw", 1.0}});
  const std::vector<std::int32_t> ids = {3, 1};
  bench.expect(Request::reset, ids);
  Batch batch(bench.engine->run(Request::reset, ids.data(), 2));
  bench.check_failed_row(*batch, 0, 3);
  bench.check_failed_row(*batch, 1, 1);
  const auto faults = bench.engine->faults_of(*batch);
  CHECK_EQUAL(faults.size(), 2u);
  CHECK_EQUAL(faults[0].method, EF_IN_RESET);
  bench.engine->set_reset_options({});
  for (const std::int32_t id : ids) bench.engine->rebuild(id, EF_UNSTARTED);
  bench.run_and_check(Request::reset, nullptr);
}

TEST(observe_that_throws) {
  for (int num_threads = 1; num_threads <= 3; ++num_threads) {
    Bench<Thrower> bench(options_of(8, 8, num_threads));
    bench.engine->set_reset_options({{"throw_in_observe", 1.0}});
    bench.run_and_check(Request::reset, nullptr);
    Batch batch(bench.engine->run(Request::observe, nullptr, 8));
    const auto faults = bench.engine->faults_of(*batch);
    CHECK_EQUAL(faults.size(), 4u);
    for (int row = 0; row < 8; ++row) {
      const bool throws = row % 2 == 1;
      CHECK_EQUAL(has_fault(faults, row), throws);
      CHECK_EQUAL(Bench<Thrower>::obs<std::int32_t>(*batch, 0)[3 * row], throws ? 0 : row);
      CHECK_EQUAL(bench.engine->phases()[row], throws ? EF_BROKEN : EF_RUNNING);
    }
    for (const Fault& fault : faults) CHECK_EQUAL(fault.method, EF_IN_OBSERVE);
  }
}

TEST(random_faults_complete_their_rows_asynchronously) {
  std::minstd_rand random(9);
  for (const int num_threads : {1, 3}) {
    for (const int batch_size : {1, 5, 18}) {
      const bool keeps_last_obs = (num_threads + batch_size) % 2 == 0;
      const EngineOptions options = options_of(19, batch_size, num_threads, EF_NEXT_STEP, keeps_last_obs);
      Bench<Thrower> bench(options, {.burn_ns = 20'000, .chance = 0.05});
      bench.expect(Request::reset, bench.all());
      bench.engine->post(Request::reset, bench.all().data(), 19);
      std::int64_t num_faults = 0;
      for (std::int64_t taken = 0; taken < 6000; taken += batch_size) {
        Batch batch(bench.engine->take(-1));
        const auto faults = bench.engine->faults_of(*batch);
        num_faults += static_cast<std::int64_t>(faults.size());
        std::vector<std::int32_t> failed, well;
        for (int row = 0; row < batch_size; ++row) {
          const std::int32_t id = batch->env_ids()[row];
          if (has_fault(faults, id)) {
            bench.check_failed_row(*batch, row, id);
            bench.engine->rebuild(id, EF_UNSTARTED);
            failed.push_back(id);
          } else {
            bench.check_row(*batch, row, id);
            well.push_back(id);
          }
        }
        CHECK_EQUAL(failed.size(), faults.size());
        bench.expect(Request::reset, failed);
        bench.engine->post(Request::reset, failed.data(), failed.size());
        bench.expect(Request::step, well);
        bench.engine->post(Request::step, well.data(), well.size());
      }
      CHECK(num_faults > 100);
      CHECK(bench.engine->drop_pending(-1));
    }
  }
}

TEST(random_faults_complete_their_rows_in_order) {
  for (int num_threads = 1; num_threads <= 4; ++num_threads) {
    const EngineOptions options = options_of(21, 21, num_threads, EF_NEXT_STEP, num_threads % 2 == 0);
    Bench<Thrower> bench(options, {.burn_ns = 10'000, .chance = 0.1});
    std::vector<std::int32_t> to_reset = bench.all(), well;
    const auto run = [&](Request request, const std::vector<std::int32_t>& ids, std::vector<std::int32_t>& failed) {
      if (ids.empty()) return;
      bench.expect(request, ids);
      bench.engine->start(request, ids.data(), ids.size());
      Batch batch(bench.engine->finish(-1, true));
      const auto faults = bench.engine->faults_of(*batch);
      for (std::size_t row = 0; row < ids.size(); ++row) {
        if (has_fault(faults, ids[row])) {
          bench.check_failed_row(*batch, row, ids[row]);
          bench.engine->rebuild(ids[row], EF_UNSTARTED);
          failed.push_back(ids[row]);
        } else {
          bench.check_row(*batch, row, ids[row]);
          well.push_back(ids[row]);
        }
      }
    };
    for (int i = 0; i < 300; ++i) {
      std::vector<std::int32_t> failed;
      const std::vector<std::int32_t> stepping = std::exchange(well, {});
      run(Request::step, stepping, failed);
      run(Request::reset, to_reset, failed);
      to_reset = failed;
      CHECK_EQUAL(well.size() + to_reset.size(), 21u);
    }
  }
}

TEST(resets_in_flight_keep_their_options) {
  std::minstd_rand random(12);
  Bench<Thrower> bench(options_of(8, 2, 3), {.burn_ns = 20'000});
  std::vector<bool> throws(8);
  const std::vector<std::int32_t> ordered = {6, 7};
  for (int i = 0; i < 1000; ++i) {
    for (std::int32_t id = 0; id < 6; ++id) {
      throws[id] = random() % 2 == 0;
      bench.engine->set_reset_options({{"throw", throws[id] ? 1.0 : 0.0}});
      bench.expect(Request::reset, {id});
      bench.engine->post(Request::reset, &id, 1);
    }
    bench.engine->set_reset_options({});
    bench.run_and_check(Request::reset, &ordered);
    for (int k = 0; k < 3; ++k) {
      Batch batch(bench.engine->take(-1));
      const auto faults = bench.engine->faults_of(*batch);
      for (int row = 0; row < 2; ++row) {
        const std::int32_t id = batch->env_ids()[row];
        CHECK_EQUAL(has_fault(faults, id), throws[id]);
        throws[id] ? bench.check_failed_row(*batch, row, id) : bench.check_row(*batch, row, id);
      }
    }
    for (std::int32_t id = 0; id < 6; ++id) bench.engine->rebuild(id, EF_UNSTARTED);
  }
}

TEST(faults_are_kept_until_cleared_and_told_once_received) {
  Bench<Thrower> bench(options_of(4, 1, 2));
  bench.run_and_check(Request::reset, &bench.all());
  bench.expect(Request::step, bench.all());
  for (const std::int32_t id : {1, 3}) bench.set_action(id, kThrowException);
  bench.engine->post(Request::step, bench.all().data(), 4);
  std::size_t num_received = 0;
  for (int i = 0; i < 4; ++i) {
    CHECK_EQUAL(bench.engine->num_in_flight(), 4 - i);
    Batch batch(bench.engine->take(-1));
    const std::int32_t id = batch->env_ids()[0];
    num_received += id % 2;
    // Of the others, some have thrown by now: their faults come with their rows.
    CHECK_EQUAL(bench.engine->faults_of(*batch).size(), static_cast<std::size_t>(id % 2));
    CHECK_EQUAL(bench.engine->received_faults().size(), num_received);
    id % 2 == 1 ? bench.check_failed_row(*batch, 0, id) : bench.check_row(*batch, 0, id);
  }
  // A reset that was accepted: until its row is received, there is nothing to tell of this env.
  bench.engine->rebuild(1, EF_BROKEN);
  bench.expect(Request::reset, {3});
  const std::int32_t three = 3;
  bench.engine->post(Request::reset, &three, 1);
  CHECK(bench.engine->received_faults().empty());
  bench.check_any_order(*Batch(bench.engine->take(-1)));
  CHECK(!bench.engine->has_faults());
  // Faults of rows that nobody receives are dropped with them; those that were received stay.
  bench.expect(Request::step, {0, 2});
  for (const std::int32_t id : {0, 2}) bench.set_action(id, kThrowException);
  const std::int32_t zero = 0, two = 2;
  bench.engine->post(Request::step, &zero, 1);
  bench.check_failed_row(*Batch(bench.engine->take(-1)), 0, 0);
  bench.engine->post(Request::step, &two, 1);
  CHECK(bench.engine->drop_pending(-1));
  CHECK_EQUAL(bench.engine->num_in_flight(), 0);
  const auto kept = bench.engine->received_faults();
  CHECK_EQUAL(kept.size(), 1u);
  CHECK_EQUAL(kept.at(0).env_id, 0);
  bench.engine->clear_received_faults();
  CHECK(!bench.engine->has_faults());
}

TEST(a_batch_that_was_put_back_comes_again) {
  for (const int batch_size : {2, 5}) {
    Bench<Marked> bench(options_of(5, batch_size, 2), {.burn_ns = 10'000});
    bench.run_and_check(Request::reset, nullptr);
    bench.expect(Request::step, bench.all());
    BatchBuffer* batch = nullptr;
    if (batch_size == 5) {
      batch = bench.engine->run(Request::step, nullptr, 5);
    } else {
      bench.engine->post(Request::step, bench.all().data(), 5);
      batch = bench.engine->take(-1);
    }
    const std::int64_t num_rows = batch->num_rows, num_before = bench.engine->num_in_flight();
    bench.engine->put_back(batch);
    CHECK(bench.engine->has_ordered_batch());
    CHECK_EQUAL(bench.engine->num_in_flight(), num_before + num_rows);
    Batch again(bench.engine->finish(-1, false));
    CHECK(again.get() == batch);
    CHECK_EQUAL(bench.engine->num_in_flight(), num_before);
    batch->is_whole ? bench.check_ordered(*again, bench.all()) : bench.check_any_order(*again);
    CHECK(bench.engine->drop_pending(-1));
  }
}

TEST(autoreset_has_no_options) {
  Bench<Thrower> bench(options_of(4, 4, 2), {.episode = 3});
  bench.run_and_check(Request::reset, nullptr);
  bench.engine->set_reset_options({{"throw", 1.0}});
  for (int i = 0; i < 20; ++i) bench.run_and_check(Request::step, nullptr);
  CHECK(!bench.engine->has_faults());
}
