// The memory that a caller and the workers of Python envs share: what is in it, and where.
//
// One mapping holds, for num_envs envs on num_workers workers, in this order: a header, three sets of workers, the state
// of each worker, one slot per env, and two ring buffers per worker (requests and finished rows). Columns of observations
// and actions follow; executors/python/layout.py places them. Between processes this is shared memory, in one process
// plain memory. Nothing in it is a pointer or a lock.
//
// The sets are bitmaps, so that neither side reads the state of every worker to find the few that matter: those that are
// asleep, those that have requests and must be woken, and those that have finished rows.
//
// Thread safety: a ring buffer has one writer and one reader. A slot belongs to the caller while its env is idle, and to
// the env's worker from the request until its row is finished. Any side may add to and remove from a set.
// Invariants: an env has at most one pending request, so a ring buffer with one entry per env of its worker never
// overflows. A worker that dies at any instruction leaves the state of the others intact.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "engine/counters.h"
#include "engine/split.h"

namespace envfleet::shm {

// Each version of the info schema adds at least one key, and a row's mask has 64 bits.
constexpr std::uint32_t kMaxSchemas = 64;

enum Op : std::int32_t { kStep = 0, kReset = 1, kCall = 2 };

enum RowKind : std::uint8_t { kGoodRow = 0, kFaultRow = 1, kLostRow = 2 };  // lost: its worker died

struct alignas(64) Header {
  // The caller sleeps on this futex; whoever wakes it adds one first.
  std::atomic<std::uint32_t> caller_wakeups;
  std::atomic<std::uint32_t> is_caller_waiting;
  std::atomic<std::uint32_t> wanted;  // the value of num_finished at which the caller wants to be woken
  alignas(64) std::atomic<std::uint32_t> num_finished;
  alignas(64) std::atomic<std::uint32_t> stop;
  // The version of the info schema. Each version travels in a message of its own that never changes: a worker may still
  // read an older one while the next is written.
  std::atomic<std::uint32_t> schema_version;
  std::uint64_t schema_bytes[kMaxSchemas + 1];
};

// A number that one thread at a time writes while others may read it: reads are never torn, and there is no fence.
template <class T>
class Published {
 public:
  T get() const { return value_.load(std::memory_order_relaxed); }
  operator T() const { return get(); }
  Published& operator=(T value) {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  Published& operator+=(T value) { return *this = get() + value; }
  Published& operator++() { return *this += 1; }

 private:
  std::atomic<T> value_;
};

// Added to progress_ns while an env waits at a debugger's prompt: ten years, in which no time limit ends.
constexpr std::int64_t kPromptNs = 315'360'000'000'000'000;

struct alignas(64) WorkerState {
  // Written by the caller.
  std::atomic<std::uint32_t> request_head;
  std::atomic<std::int64_t> posted_ns;
  // The worker sleeps on this futex, which is its own: whoever wakes it, the caller or another worker, adds one first.
  std::atomic<std::uint32_t> wakeups;
  // Written by the worker.
  alignas(64) std::atomic<std::uint32_t> request_tail;
  std::atomic<std::uint32_t> done_head;
  std::atomic<std::int32_t> core;         // where it went to sleep; -1: unknown
  std::atomic<std::int32_t> current_env;  // -1: none
  std::atomic<std::int64_t> progress_ns;  // when it last began or finished something; see kPromptNs
  Published<std::int64_t> busy_ns;        // inside envs
  Published<std::int64_t> wait_ns;        // for requests
};

// What stats() reports of one env. Written by the env's worker, read by any thread of the caller at any time. The numbers
// of episodes change together: a reader that finds edition odd, or changed, reads again.
struct SlotStatistics {
  Published<std::int64_t> num_steps, num_resets, num_episodes;
  Published<double> current_return;  // of the episode in progress
  Published<double> return_sum, return_min, return_max;
  Published<std::int64_t> length_sum, length_min, length_max;
  Published<std::int64_t> busy_ns, slowest_ns;
  std::atomic<std::uint32_t> edition;

  void begin_edit() {
    edition.store(edition.load(std::memory_order_relaxed) | 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  void end_edit() { edition.store(edition.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

  engine::EnvStatistics read() const {
    // Not forever: a worker may have died between begin_edit() and end_edit().
    constexpr int kMaxReads = 1000;
    engine::EnvStatistics all;
    for (int i = 0; i < kMaxReads; ++i) {
      const std::uint32_t before = edition.load(std::memory_order_acquire);
      all = {num_steps,  num_resets, num_episodes, return_sum, return_min, return_max,
             length_sum, length_min, length_max,   busy_ns,    slowest_ns};
      std::atomic_thread_fence(std::memory_order_acquire);
      if (before % 2 == 0 && edition.load(std::memory_order_relaxed) == before) break;
    }
    return all;
  }
};

struct alignas(64) Slot {
  // The request.
  std::int32_t op;
  std::uint32_t has_seed;
  std::uint32_t seed[4];
  std::uint64_t request_bytes;  // of the env's message in the side channel, 0: none
  // The row.
  double reward;
  std::int32_t elapsed_step;
  std::int32_t final_elapsed_step;
  std::uint8_t phase;  // ef_phase
  std::uint8_t terminated, truncated;
  std::uint8_t kind;  // RowKind
  std::uint8_t has_final;
  // Which of the two copies of observations holds the env's last one, where they are kept. Written by the caller alone,
  // when it collects the row: the worker writes the next observation into the other copy, and may die in the middle of it.
  std::uint8_t last_copy;
  std::uint64_t reply_bytes;            // of the env's reply in the side channel, 0: none
  std::uint64_t info_mask, final_mask;  // which info columns hold a value
  SlotStatistics statistics;
};

// An entry of a worker's ring buffer of finished rows.
struct FinishedRow {
  std::int32_t env_id;
  std::uint32_t position;  // among the finished rows of this worker
  std::int64_t finished_ns;
};

// A set of workers in shared memory, one bit each.
//
// Thread safety: any thread of any process. All operations are sequentially consistent.
class WorkerSet {
 public:
  static constexpr std::int32_t kWordBits = 64;
  using Word = std::atomic<std::uint64_t>;

  WorkerSet(Word* words, std::int32_t num_workers) : words_(words), num_words_(num_words_for(num_workers)) {}
  static constexpr std::int32_t num_words_for(std::int32_t num_workers) { return (num_workers + kWordBits - 1) / kWordBits; }
  static constexpr std::uint64_t bit_of(std::int32_t worker) { return std::uint64_t{1} << (worker % kWordBits); }

  std::int32_t num_words() const { return num_words_; }
  // Bit b of word w stands for worker w * kWordBits + b.
  Word& word(std::int32_t index) const { return words_[index]; }
  bool has(std::int32_t worker) const { return (word_of(worker).load() & bit_of(worker)) != 0; }
  bool is_empty() const {
    for (std::int32_t index = 0; index < num_words_; ++index) {
      if (words_[index].load() != 0) return false;
    }
    return true;
  }
  std::int32_t count() const {
    std::int32_t sum = 0;
    for (std::int32_t index = 0; index < num_words_; ++index) sum += std::popcount(words_[index].load());
    return sum;
  }
  // Written only if that changes it: others read the same cache line all the time.
  void add(std::int32_t worker) const {
    if (!has(worker)) word_of(worker).fetch_or(bit_of(worker));
  }
  // Returns whether it was in the set: of several threads, one removes it.
  bool remove(std::int32_t worker) const {
    return has(worker) && (word_of(worker).fetch_and(~bit_of(worker)) & bit_of(worker)) != 0;
  }

 private:
  Word& word_of(std::int32_t worker) const { return words_[worker / kWordBits]; }

  Word* words_;
  std::int32_t num_words_;
};

// Computes every address from the counts alone, so that both sides agree without exchanging pointers.
class SegmentLayout {
 public:
  SegmentLayout(std::int32_t num_envs, std::int32_t num_workers) : num_envs(num_envs), num_workers(num_workers) {
    const auto max_envs_per_worker = static_cast<std::uint32_t>((num_envs + num_workers - 1) / num_workers);
    ring_size = std::bit_ceil(max_envs_per_worker);
  }
  std::int64_t num_bytes() const {
    return finished_offset() + ring_entries() * static_cast<std::int64_t>(sizeof(FinishedRow));
  }

  // The envs of a worker are those from first_env(worker) up to, but excluding, first_env(worker + 1).
  std::int32_t first_env(std::int32_t worker) const {
    return static_cast<std::int32_t>(engine::first_of_part(num_envs, num_workers, worker));
  }
  std::int32_t worker_of(std::int32_t env_id) const {
    return static_cast<std::int32_t>(engine::part_of(num_envs, num_workers, env_id));
  }

  Header& header(std::byte* base) const { return *reinterpret_cast<Header*>(base); }
  // Workers that sleep, or are about to, until their futex changes.
  WorkerSet asleep(std::byte* base) const { return set(base, 0); }
  // Workers that have requests and sleep: whoever removes one from the set wakes it.
  WorkerSet to_wake(std::byte* base) const { return set(base, 1); }
  // Workers whose ring buffer of finished rows has grown since the caller last removed them.
  WorkerSet ready(std::byte* base) const { return set(base, 2); }
  WorkerState& worker(std::byte* base, std::int32_t index) const {
    return reinterpret_cast<WorkerState*>(base + workers_offset())[index];
  }
  Slot& slot(std::byte* base, std::int32_t env_id) const { return reinterpret_cast<Slot*>(base + slots_offset())[env_id]; }
  std::int32_t* requests(std::byte* base, std::int32_t worker) const {
    return reinterpret_cast<std::int32_t*>(base + requests_offset()) + static_cast<std::int64_t>(worker) * ring_size;
  }
  FinishedRow* finished(std::byte* base, std::int32_t worker) const {
    return reinterpret_cast<FinishedRow*>(base + finished_offset()) + static_cast<std::int64_t>(worker) * ring_size;
  }

  std::int32_t num_envs, num_workers;
  std::uint32_t ring_size;

 private:
  std::int64_t ring_entries() const { return static_cast<std::int64_t>(num_workers) * ring_size; }
  WorkerSet set(std::byte* base, std::int32_t index) const {
    return {reinterpret_cast<WorkerSet::Word*>(base + sizeof(Header) + index * set_bytes()), num_workers};
  }
  // In cache lines of their own.
  std::int64_t set_bytes() const { return (WorkerSet::num_words_for(num_workers) * 8 + 63) / 64 * 64; }
  std::int64_t workers_offset() const { return static_cast<std::int64_t>(sizeof(Header)) + 3 * set_bytes(); }
  std::int64_t slots_offset() const {
    return workers_offset() + static_cast<std::int64_t>(sizeof(WorkerState)) * num_workers;
  }
  std::int64_t requests_offset() const { return slots_offset() + static_cast<std::int64_t>(sizeof(Slot)) * num_envs; }
  std::int64_t finished_offset() const { return requests_offset() + ring_entries() * 8; }
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free,
              "an atomic in shared memory must not hide a lock, which would be private to one process");

}  // namespace envfleet::shm
