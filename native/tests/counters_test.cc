// The counters against one kept from the batches: whole, partial and asynchronous, with resets, faults and rebuilds.
#include "engine/counters.h"

#include <algorithm>

#include "tests/test_envs.h"

using namespace test;
using envfleet::engine::EnvStatistics;

namespace {

// One env, told row by row what a caller sees.
struct Told {
  EnvStatistics sums;
  double total = 0;

  void reset() {
    ++sums.num_resets;
    total = 0;
  }
  void step(double reward, bool has_ended, std::int64_t length) {
    ++sums.num_steps;
    total += reward;
    if (!has_ended) return;
    const bool is_first = sums.num_episodes++ == 0;
    sums.return_sum += total;
    sums.return_min = is_first ? total : std::min(sums.return_min, total);
    sums.return_max = is_first ? total : std::max(sums.return_max, total);
    sums.length_sum += length;
    sums.length_min = is_first ? length : std::min(sums.length_min, length);
    sums.length_max = is_first ? length : std::max(sums.length_max, length);
    total = 0;
  }
};

class Ledger {
 public:
  Ledger(Engine& engine, ef_autoreset autoreset)
      : engine_(engine), autoreset_(autoreset), told_(engine.options().num_envs) {}

  // Rows of this request; envs that threw are rebuilt in the phase ENDED, as a pool does that restarts them.
  void note(Request request, BatchBuffer& batch) {
    const std::vector<Fault> faults = engine_.faults_of(batch);
    for (std::int64_t row = 0; row < batch.num_rows; ++row) {
      const std::int32_t id = batch.is_whole ? static_cast<std::int32_t>(row) : batch.env_ids()[row];
      Told& own = told_[id];
      const auto is_own = [&](const Fault& fault) { return fault.env_id == id; };
      if (std::any_of(faults.begin(), faults.end(), is_own)) {
        own.total = 0;
        engine_.rebuild(id, EF_ENDED);
        continue;
      }
      const ef_rows& rows = batch.rows();
      const bool has_ended = rows.terminated[row] != 0 || rows.truncated[row] != 0;
      if (request == Request::reset || (rows.elapsed_step[row] == 0 && !has_ended)) {
        own.reset();
        continue;
      }
      const bool is_same_step = has_ended && autoreset_ == EF_SAME_STEP;
      own.step(rows.reward[row], has_ended, is_same_step ? rows.final_elapsed_step[row] : rows.elapsed_step[row]);
      if (is_same_step) own.reset();
    }
  }

  void check() const {
    const std::vector<EnvStatistics> kept = engine_.statistics();
    CHECK_EQUAL(kept.size(), told_.size());
    for (std::size_t id = 0; id < told_.size(); ++id) {
      const EnvStatistics& want = told_[id].sums;
      const EnvStatistics& got = kept[id];
      CHECK_EQUAL(got.num_steps, want.num_steps);
      CHECK_EQUAL(got.num_resets, want.num_resets);
      CHECK_EQUAL(got.num_episodes, want.num_episodes);
      CHECK_EQUAL(got.return_sum, want.return_sum);
      CHECK_EQUAL(got.return_min, want.return_min);
      CHECK_EQUAL(got.return_max, want.return_max);
      CHECK_EQUAL(got.length_sum, want.length_sum);
      CHECK_EQUAL(got.length_min, want.length_min);
      CHECK_EQUAL(got.length_max, want.length_max);
    }
  }

 private:
  Engine& engine_;
  const ef_autoreset autoreset_;
  std::vector<Told> told_;
};

constexpr int kNumEnvs = 150;  // more than two masks of flags, and a rest

}  // namespace

TEST(whole_and_partial_batches) {
  for (const ef_autoreset autoreset : {EF_NEXT_STEP, EF_SAME_STEP}) {
    for (int num_threads = 1; num_threads <= 3; ++num_threads) {
      auto engine = make_engine<Thrower>(options_of(kNumEnvs, kNumEnvs, num_threads, autoreset),
                                         {.episode = 6, .burn_ns = 2'000, .chance = 0.01});
      Ledger ledger(*engine, autoreset);
      std::minstd_rand random(7);
      const auto run = [&](Request request, const std::vector<std::int32_t>* ids) {
        const std::int32_t* data = ids != nullptr ? ids->data() : nullptr;
        Batch batch(engine->run(request, data, ids != nullptr ? static_cast<std::int64_t>(ids->size()) : kNumEnvs));
        ledger.note(request, *batch);
      };
      run(Request::reset, nullptr);
      for (int i = 0; i < 60; ++i) {
        const auto some = random_subset(kNumEnvs, 1 + random() % kNumEnvs, random);
        // In the middle of an episode, at its end, and of envs that were just rebuilt.
        if (i % 7 == 3) run(Request::reset, &some);
        if (i % 3 == 2) run(Request::step, &some);
        run(Request::step, nullptr);
        ledger.check();
      }
      engine->close(-1);
    }
  }
}

TEST(asynchronous_rows_while_they_are_read) {
  constexpr int kBatch = 15;  // all envs fill whole batches
  auto engine = make_engine<Marked>(options_of(kNumEnvs, kBatch, 3, EF_NEXT_STEP), {.episode = 5, .burn_ns = 3'000});
  Ledger ledger(*engine, EF_NEXT_STEP);
  std::vector<std::int32_t> all(kNumEnvs);
  std::iota(all.begin(), all.end(), 0);
  engine->post(Request::reset, all.data(), kNumEnvs);
  std::int64_t num_in_flight = kNumEnvs, last = 0;
  const auto receive = [&] {
    Batch batch(engine->take(-1));
    ledger.note(Request::step, *batch);
    num_in_flight -= batch->num_rows;
    return batch;
  };
  for (int i = 0; i < 600; ++i) {
    Batch batch = receive();
    engine->post(Request::step, batch->env_ids(), batch->num_rows);
    num_in_flight += batch->num_rows;
    std::int64_t num_steps = 0;
    for (const EnvStatistics& own : engine->statistics()) {
      CHECK(own.length_sum <= own.num_steps);
      num_steps += own.num_steps;
    }
    CHECK(num_steps >= last);
    last = num_steps;
  }
  while (num_in_flight > 0) receive();
  ledger.check();
  engine->close(-1);
}

TEST(states_and_rebuilds) {
  auto engine = make_engine<Marked>(options_of(3, 3, 1, EF_NEXT_STEP), {.episode = 2});
  const auto run = [&](Request request) { Batch batch(engine->run(request, nullptr, 3)); };
  run(Request::reset);
  run(Request::step);
  run(Request::step);  // all have ended, and are due for a reset
  CHECK_EQUAL(engine->statistics()[0].num_episodes, 1);
  CHECK_EQUAL(engine->statistics()[0].num_resets, 1);
  engine->rebuild(0, EF_ENDED);      // still due
  engine->rebuild(1, EF_UNSTARTED);  // no longer: it must be asked for
  const std::int32_t second = 1;
  {
    Batch batch(engine->run(Request::reset, &second, 1));
  }
  run(Request::step);  // a reset of envs 0 and 2
  const auto kept = engine->statistics();
  CHECK_EQUAL(kept[0].num_resets, 2);
  CHECK_EQUAL(kept[1].num_resets, 2);
  CHECK_EQUAL(kept[2].num_resets, 2);
  CHECK_EQUAL(kept[0].num_steps, 2);
  CHECK_EQUAL(kept[1].num_steps, 3);
  CHECK_EQUAL(kept[2].num_steps, 2);
  CHECK_EQUAL(kept[1].length_sum, 2);
  engine->close(-1);
}
