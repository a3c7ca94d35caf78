// Batches in other hands: released from any thread, at any time, also after the engine's end.
#include <condition_variable>
#include <deque>
#include <mutex>

#include "tests/test_envs.h"

using namespace test;

namespace {

// A batch, and what its marks and counts were when it was handed over.
struct Parcel {
  Batch batch;
  std::vector<std::int32_t> words;
};

Parcel wrap(Batch batch) {
  const auto* words = Bench<Marked>::obs<std::int32_t>(*batch, 0);
  std::vector<std::int32_t> copy(words, words + 3 * batch->num_rows);
  return {std::move(batch), std::move(copy)};
}

void check_untouched(const Parcel& parcel) {
  const auto* words = Bench<Marked>::obs<std::int32_t>(*parcel.batch, 0);
  for (std::size_t i = 0; i < parcel.words.size(); ++i) CHECK_EQUAL(words[i], parcel.words[i]);
}

// Plays the garbage collector of another thread: holds parcels for a while, then lets go of them.
class Holder {
 public:
  explicit Holder(std::size_t num_held) : num_held_(num_held), thread_([this] { work(); }) {}
  ~Holder() {
    give({});
    thread_.join();
  }
  void give(Parcel parcel) {
    std::lock_guard lock(mutex_);
    given_.push_back(std::move(parcel));
    came_.notify_one();
  }

 private:
  void work() {
    std::deque<Parcel> held;
    for (;;) {
      Parcel parcel;
      {
        std::unique_lock lock(mutex_);
        came_.wait(lock, [&] { return !given_.empty(); });
        parcel = std::move(given_.front());
        given_.pop_front();
      }
      if (parcel.batch == nullptr) break;
      held.push_back(std::move(parcel));
      if (held.size() <= num_held_) continue;
      check_untouched(held.front());
      held.pop_front();
    }
    for (const Parcel& parcel : held) check_untouched(parcel);
  }

  const std::size_t num_held_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<Parcel> given_;
  std::thread thread_;
};

}  // namespace

TEST(steady_state_allocates_nothing) {
  Bench<Marked> bench(options_of(8, 8, 2), {.burn_ns = 2'000});
  bench.run_and_check(Request::reset, nullptr);
  for (int i = 0; i < 500; ++i) bench.run_and_check(Request::step, nullptr);
  CHECK_EQUAL(bench.engine->num_buffers(), 1);
}

TEST(buffers_released_by_other_threads) {
  Bench<Marked> bench(options_of(8, 8, 2), {.burn_ns = 4'000});
  bench.run_and_check(Request::reset, nullptr);
  Holder few(2), many(40);  // more than the pool keeps: some are freed, some recycled
  for (int i = 0; i < 4000; ++i) {
    bench.expect(Request::step, bench.all());
    Batch batch(bench.engine->run(Request::step, nullptr, 8));
    bench.check_ordered(*batch, bench.all());
    (i % 2 == 0 ? few : many).give(wrap(std::move(batch)));
  }
}

TEST(asynchronous_buffers_released_by_other_threads) {
  Bench<Marked> bench(options_of(9, 4, 2), {.burn_ns = 15'000});
  Holder few(1), many(30);
  bench.expect(Request::reset, bench.all());
  bench.engine->post(Request::reset, bench.all().data(), 9);
  for (int i = 0; i < 3000; ++i) {
    Batch batch(bench.engine->take(-1));
    bench.check_any_order(*batch);
    const std::vector<std::int32_t> ids(batch->env_ids(), batch->env_ids() + 4);
    (i % 2 == 0 ? few : many).give(wrap(std::move(batch)));
    bench.expect(Request::step, ids);
    bench.engine->post(Request::step, ids.data(), 4);
  }
}

TEST(buffers_outlive_their_engine) {
  for (const int batch_size : {6, 4}) {
    std::vector<Parcel> parcels;
    {
      Bench<Marked> bench(options_of(6, batch_size, 2), {.burn_ns = 5'000});
      bench.run_and_check(Request::reset, nullptr);
      for (int i = 0; i < 40; ++i) {
        Batch batch;
        if (batch_size == 6) {
          batch.reset(bench.engine->run(Request::step, nullptr, 6));
        } else {
          bench.engine->post(Request::step, bench.all().data(), 4);
          batch.reset(bench.engine->take(-1));
        }
        parcels.push_back(wrap(std::move(batch)));
      }
    }
    for (const Parcel& parcel : parcels) check_untouched(parcel);
    // From several threads at once: one of them is the last owner of the pool.
    std::vector<std::thread> releasers;
    for (int part = 0; part < 4; ++part) {
      releasers.emplace_back([&, part] {
        for (std::size_t i = part; i < parcels.size(); i += 4) parcels[i].batch.reset();
      });
    }
    for (std::thread& releaser : releasers) releaser.join();
  }
}
