// An env that throws while there is no memory: its fault is reported, and the process goes on.
#include <atomic>
#include <cstdlib>
#include <exception>
#include <new>

#include "tests/test_envs.h"

using namespace test;

namespace {

std::atomic<bool> is_memory_full{false};

// Longer than a std::string holds without memory of its own.
constexpr const char* kLongMessage =
    "the simulator could not allocate its contact buffer and gave up in the middle of a step";

struct ThrowsLongMessage : std::exception {
  const char* what() const noexcept override { return kLongMessage; }
};

constexpr int kExhaust = 903;  // no allocation succeeds from here until the test says so

struct Exhausting : Marked {
  using Marked::Marked;
  void step(int action, Rng& rng, Out& out) {
    if (action == kExhaust) {
      is_memory_full = true;
      throw ThrowsLongMessage();
    }
    Marked::step(action, rng, out);
  }
};

}  // namespace

// All other forms of new and delete call these, except the aligned ones.
void* operator new(std::size_t size) {
  void* memory = is_memory_full ? nullptr : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

TEST(fault_without_memory) {
  for (int num_threads = 1; num_threads <= 3; ++num_threads) {
    Bench<Exhausting> bench(options_of(9, 9, num_threads), {.burn_ns = 20'000});
    bench.run_and_check(Request::reset, nullptr);
    for (int i = 0; i < 20; ++i) {
      bench.expect(Request::step, bench.all());
      for (const std::int32_t id : {2, 5, 6}) bench.set_action(id, kExhaust);
      BatchBuffer* rows = bench.engine->run(Request::step, nullptr, 9);
      is_memory_full = false;
      Batch batch(rows);
      for (int row = 0; row < 9; ++row) {
        if (row == 2 || row == 5 || row == 6) {
          bench.check_failed_row(*batch, row, row);
        } else {
          bench.check_row(*batch, row, row);
        }
      }
      const auto faults = bench.engine->faults_of(*batch);
      CHECK_EQUAL(faults.size(), 3u);
      for (const Fault& fault : faults) CHECK(fault.what == "out of memory");
      for (const std::int32_t id : {2, 5, 6}) bench.engine->rebuild(id, EF_UNSTARTED);
      CHECK(!bench.engine->has_faults());
      bench.run_and_check(Request::reset, nullptr);
    }
  }
}

// There is room for one fault per env: a later one replaces one that was never cleared.
TEST(faults_that_are_never_cleared) {
  Bench<Exhausting> bench(options_of(3, 3, 1));
  bench.run_and_check(Request::reset, nullptr);
  for (int i = 0; i < 10; ++i) {
    bench.expect(Request::step, bench.all());
    for (const std::int32_t id : bench.all()) bench.set_action(id, kExhaust);
    BatchBuffer* rows = bench.engine->run(Request::step, nullptr, 3);
    is_memory_full = false;
    Batch batch(rows);
    for (const std::int32_t id : bench.all()) bench.check_failed_row(*batch, id, id);
    CHECK_EQUAL(bench.engine->received_faults().size(), 3u);
  }
}
