// Waking workers that sleep although they have requests: a task that the caller and the workers share.
//
// To wake a process costs several microseconds. If the caller woke 128 workers by itself, the last would start half a
// millisecond after the first; so each worker that wakes up wakes a few others before it serves its own requests.
//
// Thread safety: any thread of any process.
// Invariant: a worker in to_wake is woken by whoever removes it. If that process dies in between, the caller, which
// learns of every death, wakes all workers that have requests.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "engine/wait.h"
#include "shm/segment.h"

namespace envfleet::shm {

inline void wake_worker(WorkerState& state) {
  state.wakeups.fetch_add(1, std::memory_order_seq_cst);
  engine::wake_shared(state.wakeups);
}

// Wakes workers until none is left to wake or `limit` have been woken.
inline void wake_sleepers(const SegmentLayout& layout, std::byte* base, std::int32_t limit) {
  const WorkerSet to_wake = layout.to_wake(base);
  for (std::int32_t index = 0; index < to_wake.num_words(); ++index) {
    while (const std::uint64_t bits = to_wake.word(index).load()) {
      if (limit <= 0) return;
      const std::int32_t worker = index * WorkerSet::kWordBits + std::countr_zero(bits);
      if (!to_wake.remove(worker)) continue;  // somebody else wakes it
      // An env may have written over the shared memory.
      if (worker >= layout.num_workers) continue;
      wake_worker(layout.worker(base, worker));
      --limit;
    }
  }
}

}  // namespace envfleet::shm
