// Board: the memory in which a caller and the workers of Python envs meet.
//
// One mapping holds, for num_envs envs on num_workers workers: a header, the words of each worker,
// a slot an env, and two rings a worker (requests, done). Columns of observations and actions
// follow; executors/rows/layout.py places them. In one process it is plain memory, between
// processes a shared mapping: nothing here holds a pointer or a lock.
//
// Thread safety: a ring has one writer and one reader. A slot belongs to the caller while its env
// is idle and to the env's worker from the request until it is done.
// Invariant: an env has at most one request pending, so a ring as long as its worker's share never
// overflows; a worker that dies at any instruction leaves the others' words intact.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace envfleet::rows {

// A version adds a key at least, and a row's mask has 64 bits.
constexpr std::uint32_t kMaxSchemas = 64;

enum Op : std::int32_t { kStep = 0, kReset = 1, kCall = 2 };

enum RowKind : std::uint8_t { kGoodRow = 0, kFaultRow = 1, kLostRow = 2 };  // lost: its worker died

struct alignas(64) Header {
  // The caller sleeps on bell; who rings it adds one.
  std::atomic<std::uint32_t> bell;
  std::atomic<std::uint32_t> caller_waits;
  std::atomic<std::uint32_t> wanted;  // the caller wants to be woken when completed gets here
  // The workers sleep on work_bell, each with its own bit: one call wakes just those who are wanted.
  alignas(64) std::atomic<std::uint32_t> work_bell;
  // Workers that spin before they sleep, a bit each: one that dies at any instruction leaves the count right.
  std::atomic<std::uint64_t> spinners;
  alignas(64) std::atomic<std::uint32_t> completed;
  std::atomic<std::uint32_t> order;  // a ticket for each finished row: which came first, across workers
  alignas(64) std::atomic<std::uint32_t> stop;
  // Of the info columns. Each version has a letter of its own that never changes: a worker may read an older one
  // while the next is written.
  std::atomic<std::uint32_t> schema_version;
  std::uint64_t schema_bytes[kMaxSchemas + 1];
};

// A number that one thread at a time writes while others may read it: never half of a value, and no fence.
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

struct alignas(64) WorkerWords {
  // Written by the caller.
  std::atomic<std::uint32_t> request_head;
  std::atomic<std::int64_t> posted_ns;
  // Written by the worker.
  alignas(64) std::atomic<std::uint32_t> request_tail;
  std::atomic<std::uint32_t> sleeps;
  std::atomic<std::uint32_t> done_head;
  std::atomic<std::int32_t> core;         // where it went to sleep; -1: not known
  std::atomic<std::int32_t> current_env;  // -1: none
  std::atomic<std::int64_t> progress_ns;  // when it last began or finished something
  Published<std::int64_t> busy_ns;        // inside envs
  Published<std::int64_t> wait_ns;        // for requests
};

// The bit of a worker; beyond 32 of them some share one, and wake up for nothing now and then.
constexpr std::uint32_t bit_of(std::int32_t worker) { return 1u << (worker % 32); }
// The same among the spinners; beyond 64 workers those who share one are counted once.
constexpr std::uint64_t spin_bit_of(std::int32_t worker) { return std::uint64_t{1} << (worker % 64); }

// Written by the env's worker, read by the caller at any time.
struct Statistics {
  Published<std::int64_t> num_steps, num_resets, num_episodes;
  Published<double> return_now, return_sum, return_min, return_max;
  Published<std::int64_t> length_sum, length_min, length_max;
  Published<std::int64_t> busy_ns, slowest_ns;
};

struct alignas(64) Slot {
  // The request.
  std::int32_t op;
  std::uint32_t has_seed;
  std::uint32_t seed[4];
  std::uint64_t request_bytes;  // of a message in the env's mailbox
  // The row.
  double reward;
  std::int32_t elapsed_step;
  std::int32_t final_elapsed_step;
  std::uint8_t phase;  // autoreset.Phase
  std::uint8_t terminated, truncated;
  std::uint8_t kind;  // RowKind
  std::uint8_t has_final;
  std::uint64_t reply_bytes;            // of a message in the env's mailbox, 0: none
  std::uint64_t info_mask, final_mask;  // which info columns hold a value
  Statistics statistics;
};

struct Done {
  std::int32_t env_id;
  std::uint32_t ticket;
};

// Where things are, from the counts alone; the same on both sides. Envs go to workers in
// contiguous shares that differ by one at most.
class Geometry {
 public:
  Geometry(std::int32_t num_envs, std::int32_t num_workers) : num_envs(num_envs), num_workers(num_workers) {
    const auto share = static_cast<std::uint32_t>((num_envs + num_workers - 1) / num_workers);
    ring_size = std::bit_ceil(share);
  }
  std::int64_t bytes() const { return done_offset() + ring_entries() * static_cast<std::int64_t>(sizeof(Done)); }
  std::int32_t first_env(std::int32_t worker) const {
    return static_cast<std::int32_t>(static_cast<std::int64_t>(num_envs) * worker / num_workers);
  }
  std::int32_t worker_of(std::int32_t env_id) const {
    auto guess = static_cast<std::int32_t>(static_cast<std::int64_t>(env_id) * num_workers / num_envs);
    while (guess + 1 < num_workers && first_env(guess + 1) <= env_id) ++guess;
    return guess;
  }

  Header& header(std::byte* base) const { return *reinterpret_cast<Header*>(base); }
  WorkerWords& worker(std::byte* base, std::int32_t index) const {
    return reinterpret_cast<WorkerWords*>(base + sizeof(Header))[index];
  }
  Slot& slot(std::byte* base, std::int32_t env_id) const { return reinterpret_cast<Slot*>(base + slots_offset())[env_id]; }
  std::int32_t* requests(std::byte* base, std::int32_t worker) const {
    return reinterpret_cast<std::int32_t*>(base + requests_offset()) + static_cast<std::int64_t>(worker) * ring_size;
  }
  Done* done(std::byte* base, std::int32_t worker) const {
    return reinterpret_cast<Done*>(base + done_offset()) + static_cast<std::int64_t>(worker) * ring_size;
  }

  std::int32_t num_envs, num_workers;
  std::uint32_t ring_size;

 private:
  std::int64_t ring_entries() const { return static_cast<std::int64_t>(num_workers) * ring_size; }
  std::int64_t slots_offset() const {
    return static_cast<std::int64_t>(sizeof(Header)) + static_cast<std::int64_t>(sizeof(WorkerWords)) * num_workers;
  }
  std::int64_t requests_offset() const { return slots_offset() + static_cast<std::int64_t>(sizeof(Slot)) * num_envs; }
  std::int64_t done_offset() const { return requests_offset() + ring_entries() * 8; }
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free,
              "words between processes must not hide a lock");

}  // namespace envfleet::rows
