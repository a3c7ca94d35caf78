// PageLock with a driver that counts: memory is locked once, unlocked once, and before it is freed.
#include "cuda/driver.h"
#include "tests/check.h"

namespace {

using envfleet::cuda::PageLock;
using envfleet::cuda::PageLockFunctions;

int num_locks = 0, num_unlocks = 0, result = 0;
int marker = 0;

const PageLockFunctions kCounting{
    [](void*, std::size_t, void** context) {
      ++num_locks;
      *context = &marker;
      return result;
    },
    [](void*, void* context) {
      num_unlocks += context == &marker ? 1 : 0;
      return 0;
    },
};

void reset_counts(int lock_result) { num_locks = num_unlocks = 0, result = lock_result; }

}  // namespace

TEST(locks_once_and_unlocks_at_the_end) {
  reset_counts(0);
  char memory[64];
  {
    PageLock lock;
    CHECK(!lock.is_locked());
    CHECK(lock.lock(memory, sizeof(memory), &kCounting));
    CHECK(lock.lock(memory, sizeof(memory), &kCounting));
    CHECK(lock.is_locked());
    CHECK_EQUAL(num_locks, 1);
    CHECK_EQUAL(num_unlocks, 0);
  }
  CHECK_EQUAL(num_unlocks, 1);
}

TEST(a_refusal_is_not_tried_again) {
  reset_counts(1);
  char memory[64];
  {
    PageLock lock;
    CHECK(!lock.lock(memory, sizeof(memory), &kCounting));
    CHECK(!lock.lock(memory, sizeof(memory), &kCounting));
    CHECK_EQUAL(num_locks, 1);
  }
  CHECK_EQUAL(num_unlocks, 0);
}

TEST(without_a_driver_nothing_is_locked_and_it_is_tried_again) {
  reset_counts(0);
  char memory[64];
  PageLock lock;
  CHECK(!lock.lock(memory, sizeof(memory), nullptr));
  CHECK(lock.lock(memory, sizeof(memory), &kCounting));
}
