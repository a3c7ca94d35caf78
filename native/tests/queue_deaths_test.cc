// A worker process that ends at any instruction: what it leaves in shared memory is whole for the caller and the others.
//
// A debugger's view: the worker is stepped through one request, instruction by instruction, from asleep to finished.
// After each instruction the memory is copied, and on the copy the worker is dead.
#include "tests/queue_workers.h"

#if defined(__linux__)
#include <sys/ptrace.h>

#include <cerrno>
#include <cstring>

namespace {

using namespace envfleet::shm;
using namespace queues;

constexpr std::int32_t kNumEnvs = 4;  // 0 and 1 are the stepped worker's, 2 and 3 another's

void post(CallerQueue& queue, SharedMemory& memory, std::vector<std::int32_t> env_ids, std::uint64_t token) {
  for (const std::int32_t env_id : env_ids) memory.requests[env_id].write(token + static_cast<std::uint64_t>(env_id), 0);
  queue.post(env_ids.data(), std::ssize(env_ids));
}

void serve_by_hand(WorkerQueue& worker, SharedMemory& memory, std::int32_t env_id) {
  CHECK_EQUAL(worker.take_request(), env_id);
  memory.rows[env_id].write(memory.requests[env_id].token, 0);
  worker.slot(env_id).kind = kGoodRow;
  worker.finish(env_id, envfleet::engine::now_ns());
}

void take_good(CallerQueue& queue, SharedMemory& memory, std::int32_t env_id, std::uint64_t token) {
  CHECK(queue.is_collected(env_id));
  CHECK_EQUAL(queue.slot(env_id).kind, kGoodRow);
  CHECK(memory.rows[env_id].is_whole());
  CHECK_EQUAL(memory.rows[env_id].token, token);
  queue.take(env_id);
}

// The caller's part up to the worker's death; the same each time, so a copy has the same caller.
struct Caller {
  explicit Caller(SharedMemory& own)
      : memory(own), queue(own.base, own.layout, false, -1), other(own.base, own.layout, 1, 1) {}

  void post_to_other() {
    post(queue, memory, {2, 3}, 100);
    serve_by_hand(other, memory, 2);
    // As if it had fallen asleep before it saw the second request: the stepped worker is to wake it.
    memory.layout.to_wake(memory.base).add(1);
  }
  void post_to_stepped() { post(queue, memory, {1, 0}, 200); }

  SharedMemory& memory;
  CallerQueue queue;
  WorkerQueue other;
};

// Returns whether the row of env 1, the first that is asked for, arrived.
bool check_death(const SharedMemory& stepped, bool is_posted) {
  SharedMemory memory(kNumEnvs, 2);
  Caller caller(memory);
  caller.post_to_other();
  if (is_posted) caller.post_to_stepped();
  std::memcpy(memory.base, stepped.base, stepped.num_bytes());
  CallerQueue& queue = caller.queue;
  queue.mark_dead(0);
  queue.wait(4, -1, true);  // returns: the death is news
  queue.collect();
  // The other worker goes on, and was woken, also if the stepped one died just before it woke it.
  CHECK(memory.layout.worker(memory.base, 1).wakeups.load() > 0);
  serve_by_hand(caller.other, memory, 3);
  queue.collect();
  CHECK_EQUAL(queue.num_collected(), is_posted ? 4 : 2);
  take_good(queue, memory, 2, 102);
  take_good(queue, memory, 3, 103);
  bool is_finished = false;
  if (is_posted) {
    CHECK_EQUAL(queue.slot(0).kind, kLostRow);
    is_finished = queue.slot(1).kind == kGoodRow;
    if (is_finished) {
      take_good(queue, memory, 1, 201);
    } else {
      CHECK_EQUAL(queue.slot(1).kind, kLostRow);
      queue.take(1);
    }
    queue.take(0);
  }
  CHECK_EQUAL(queue.num_in_flight(), 0);
  // And so does a successor.
  queue.revive(0);
  WorkerQueue successor(memory.base, memory.layout, 0, 1);
  CHECK(!successor.has_request());
  post(queue, memory, {0, 1, 2}, 300);
  serve_by_hand(successor, memory, 0);
  serve_by_hand(successor, memory, 1);
  serve_by_hand(caller.other, memory, 2);
  queue.collect();
  for (const std::int32_t env_id : {0, 1, 2}) take_good(queue, memory, env_id, 300 + static_cast<std::uint64_t>(env_id));
  return is_finished;
}

// One instruction. False: the worker stopped itself instead.
bool step_once(pid_t pid) {
  CHECK_EQUAL(ptrace(PTRACE_SINGLESTEP, pid, nullptr, nullptr), 0);
  int status = 0;
  CHECK_EQUAL(waitpid(pid, &status, 0), pid);
  CHECK(WIFSTOPPED(status));
  return WSTOPSIG(status) == SIGTRAP;
}

}  // namespace

TEST(a_worker_may_die_at_any_instruction) {
  if (kIsThreadSanitized) return;  // its runtime cannot be single-stepped
  SharedMemory memory(kNumEnvs, 2);
  Caller caller(memory);
  caller.post_to_other();
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(errno == EPERM ? 77 : 1);
    raise(SIGSTOP);
    serve(memory, 0, 0, 1, [](Moment moment) {
      if (moment == Moment::finished) raise(SIGSTOP);
      return false;
    });
    _exit(0);
  }
  int status = 0;
  CHECK_EQUAL(waitpid(pid, &status, 0), pid);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    std::printf("  skipped: this system does not permit ptrace()\n");
    return;
  }
  CHECK(WIFSTOPPED(status));
  // A check that fails here ends the worker too.
  CHECK_EQUAL(ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_EXITKILL), 0);
  Header& header = memory.layout.header(memory.base);
  // As while the caller waits: the worker rings too.
  header.is_caller_waiting.store(1);
  header.wanted.store(header.num_finished.load() + 1);
  std::int64_t num_steps = 0, num_steps_asleep = 0, num_finished = 0;
  bool is_posted = false;
  while (step_once(pid)) {
    ++num_steps;
    if (memory.layout.asleep(memory.base).has(0) && !is_posted) {
      // Another wake-up each time: the worker looks again instead of falling asleep for good.
      memory.layout.worker(memory.base, 0).wakeups.fetch_add(1);
      if (++num_steps_asleep == 1000) {
        caller.post_to_stepped();
        is_posted = true;
      }
    }
    if (check_death(memory, is_posted)) ++num_finished;
  }
  CHECK(is_posted && num_finished > 0);
  CHECK_EQUAL(::kill(pid, SIGKILL), 0);
  CHECK_EQUAL(waitpid(pid, &status, 0), pid);
  std::printf("  %ld instructions, %ld of them after the row was finished\n", static_cast<long>(num_steps),
              static_cast<long>(num_finished));
}

#else

TEST(a_worker_may_die_at_any_instruction) { std::printf("  skipped: needs Linux's ptrace()\n"); }

#endif
