// Shared memory with its queues and one column each for requests and rows, and workers that serve it.
//
// A worker is a thread (ThreadSanitizer sees both sides) or a forked process (SIGKILL ends it at any instruction).
// Its row echoes the request and names the worker's incarnation, so that a lost, doubled or outdated row shows.
//
// Thread safety: SharedMemory's plain members are handed over through the queues under test: that they need no
// lock of their own is what ThreadSanitizer checks here.
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "engine/wait.h"
#include "shm/caller_queue.h"
#include "shm/segment.h"
#include "shm/slot_updates.h"
#include "shm/worker_queue.h"
#include "tests/check.h"

namespace queues {

using envfleet::shm::CallerQueue;
using envfleet::shm::SegmentLayout;
using envfleet::shm::WorkerQueue;

#if defined(__SANITIZE_THREAD__)
constexpr bool kIsThreadSanitized = true;
#else
constexpr bool kIsThreadSanitized = false;
#endif

// Long enough that a lost wake-up shows as a hang.
constexpr std::int64_t kHourNs = 3600ll * 1'000'000'000;

// How many times longer than usual the random tests run, and from which seed.
inline int scale() {
  const char* given = std::getenv("ENVFLEET_TEST_SCALE");
  return given != nullptr ? std::max(1, std::atoi(given)) : 1;
}
inline unsigned seed() {
  const char* given = std::getenv("ENVFLEET_TEST_SEED");
  return given != nullptr ? static_cast<unsigned>(std::atoi(given)) : 1;
}

// Several words: half a write is visible.
struct Message {
  std::uint64_t token;
  std::uint64_t incarnation;
  std::array<std::uint64_t, 6> echo;

  void write(std::uint64_t own_token, std::uint64_t own_incarnation) {
    token = own_token;
    incarnation = own_incarnation;
    for (std::size_t i = 0; i < echo.size(); ++i) echo[i] = own_token * (i + 3) + own_incarnation;
  }
  bool is_whole() const {
    for (std::size_t i = 0; i < echo.size(); ++i) {
      if (echo[i] != token * (i + 3) + incarnation) return false;
    }
    return true;
  }
};

class SharedMemory {
 public:
  SharedMemory(std::int32_t num_envs, std::int32_t num_workers) : layout(num_envs, num_workers) {
    const auto queue_bytes = static_cast<std::size_t>((layout.num_bytes() + 63) / 64 * 64);
    num_bytes_ = queue_bytes + 2 * sizeof(Message) * num_envs + sizeof(Count) * num_workers;
    void* data = mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(data != MAP_FAILED);
    base = static_cast<std::byte*>(data);
    requests = reinterpret_cast<Message*>(base + queue_bytes);
    rows = requests + num_envs;
    num_finished = reinterpret_cast<Count*>(rows + num_envs);
  }
  ~SharedMemory() { munmap(base, num_bytes_); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  using Count = std::atomic<std::int64_t>;
  std::size_t num_bytes() const { return num_bytes_; }

  SegmentLayout layout;
  std::byte* base;
  Message *requests, *rows;  // by env
  Count* num_finished;       // by worker: rows whose finish() returned

 private:
  std::size_t num_bytes_;
};

// What a worker does at the moments at which it may be disturbed.
enum class Moment { taken, half_written, written, finished };

// Serves until the queues say stop. disturb(moment) is called at each moment; true ends the worker there.
template <class Disturb>
void serve(SharedMemory& memory, std::int32_t worker, std::uint64_t incarnation, int num_cores, Disturb&& disturb) {
  WorkerQueue queue(memory.base, memory.layout, worker, num_cores);
  while (!queue.is_stopped()) {
    const std::int64_t now = envfleet::engine::now_ns();
    queue.state().progress_ns.store(now, std::memory_order_relaxed);
    if (!queue.has_request()) {
      queue.sleep();
      continue;
    }
    const std::int32_t env_id = queue.take_request();
    CHECK(env_id >= queue.first_env() && env_id < queue.end_env());
    if (disturb(Moment::taken)) return;
    const Message request = memory.requests[env_id];
    CHECK(request.is_whole());
    CHECK_EQUAL(request.incarnation, incarnation);
    queue.slot(env_id).kind = envfleet::shm::kGoodRow;
    memory.rows[env_id].token = request.token;
    if (disturb(Moment::half_written)) return;
    memory.rows[env_id].write(request.token, incarnation);
    envfleet::shm::count_step(queue.slot(env_id), 0, 1.0, request.token % 5 == 0, false);
    queue.state().busy_ns += 1;
    if (disturb(Moment::written)) return;
    const std::int64_t finished_ns = envfleet::engine::now_ns();
    queue.state().progress_ns.store(finished_ns, std::memory_order_relaxed);
    queue.finish(env_id, finished_ns);
    memory.num_finished[worker].fetch_add(1);
    if (disturb(Moment::finished)) return;
  }
}

// Options of the workers in a random run.
struct Disturbance {
  int deaths_per_10000 = 0;  // chance of a death at each moment
  int hangs_per_10000 = 0;   // chance of a hang that only a kill ends
  int num_cores = 0;
};

// Workers as threads. A kill is obeyed at the next moment of the worker's, as long as it has requests.
class ThreadWorkers {
 public:
  static constexpr bool is_exact = true;  // num_finished counts every finished row

  ThreadWorkers(SharedMemory& memory, CallerQueue& queue, Disturbance disturbance, unsigned seed)
      : memory_(memory), queue_(queue), disturbance_(disturbance), seed_(seed), own_(memory.layout.num_workers) {}
  ~ThreadWorkers() { end(); }
  // Ends all; none of them may be asleep unless the queues said stop.
  void end() {
    for (std::int32_t worker = 0; worker < memory_.layout.num_workers; ++worker) kill(worker);
    for (Own& own : own_) {
      if (own.thread.joinable()) own.thread.join();
    }
  }

  void start(std::int32_t worker, std::uint64_t incarnation) {
    Own& own = own_[worker];
    own.is_killed.store(false);
    own.thread = std::thread([this, &own, worker, incarnation] {
      std::minstd_rand random(seed_ + 7919 * static_cast<unsigned>(worker) + 104'729 * static_cast<unsigned>(incarnation));
      bool has_died = false;
      serve(memory_, worker, incarnation, disturbance_.num_cores, [&](Moment) {
        if (random() % 8 == 0) std::this_thread::yield();
        if (random() % 10'000 < static_cast<unsigned>(disturbance_.hangs_per_10000)) own.is_killed.wait(false);
        has_died = own.is_killed.load() || random() % 10'000 < static_cast<unsigned>(disturbance_.deaths_per_10000);
        return has_died;
      });
      if (!has_died) return;
      own.num_ended.store(incarnation + 1);
      queue_.mark_dead(worker);
    });
  }
  // What waitpid() is for processes: from here on the worker writes nothing.
  void wait(std::int32_t worker) { own_[worker].thread.join(); }
  void kill(std::int32_t worker) {
    own_[worker].is_killed.store(true);
    own_[worker].is_killed.notify_all();
  }
  // How many incarnations of this worker have ended.
  std::uint64_t num_ended(std::int32_t worker) const { return own_[worker].num_ended.load(); }

 private:
  struct Own {
    std::thread thread;
    std::atomic<bool> is_killed{false};
    std::atomic<std::uint64_t> num_ended{0};
  };
  SharedMemory& memory_;
  CallerQueue& queue_;
  Disturbance disturbance_;
  unsigned seed_;
  std::vector<Own> own_;
};

// Workers as processes. A kill is SIGKILL; a thread per process waits for its end and reports it.
class ProcessWorkers {
 public:
  static constexpr bool is_exact = false;  // a process may die between finish() and the count

  ProcessWorkers(SharedMemory& memory, CallerQueue& queue, Disturbance disturbance, unsigned seed)
      : memory_(memory), queue_(queue), disturbance_(disturbance), seed_(seed), own_(memory.layout.num_workers) {}
  ~ProcessWorkers() { end(); }
  void end() {
    for (std::int32_t worker = 0; worker < memory_.layout.num_workers; ++worker) {
      kill(worker);
      if (own_[worker].reaper.joinable()) own_[worker].reaper.join();
    }
  }

  void start(std::int32_t worker, std::uint64_t incarnation) {
    Own& own = own_[worker];
    // Drawn before fork(): the child must not allocate, and threads of the parent may hold malloc's lock.
    std::minstd_rand random(seed_ + 7919 * static_cast<unsigned>(worker) + 104'729 * static_cast<unsigned>(incarnation));
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
      serve(memory_, worker, incarnation, disturbance_.num_cores, [&](Moment) {
        if (random() % 10'000 < static_cast<unsigned>(disturbance_.hangs_per_10000)) pause();
        if (random() % 10'000 < static_cast<unsigned>(disturbance_.deaths_per_10000)) raise(SIGKILL);
        return false;
      });
      _exit(0);
    }
    own.pid.store(pid);
    own.reaper = std::thread([this, &own, pid, worker, incarnation] {
      // Not reaped yet, so that the pid stays this worker's until kill() can no longer name it.
      siginfo_t end{};
      CHECK_EQUAL(waitid(P_PID, static_cast<id_t>(pid), &end, WEXITED | WNOWAIT), 0);
      own.pid.store(0);
      CHECK_EQUAL(waitpid(pid, nullptr, 0), pid);
      CHECK(end.si_code == CLD_KILLED ? end.si_status == SIGKILL : end.si_status == 0);
      own.num_ended.store(incarnation + 1);
      queue_.mark_dead(worker);
    });
  }
  void wait(std::int32_t worker) { own_[worker].reaper.join(); }
  void kill(std::int32_t worker) {
    const pid_t pid = own_[worker].pid.load();
    if (pid > 0) ::kill(pid, SIGKILL);
  }
  std::uint64_t num_ended(std::int32_t worker) const { return own_[worker].num_ended.load(); }

 private:
  struct Own {
    std::thread reaper;
    std::atomic<pid_t> pid{0};
    std::atomic<std::uint64_t> num_ended{0};
  };
  SharedMemory& memory_;
  CallerQueue& queue_;
  Disturbance disturbance_;
  unsigned seed_;
  std::vector<Own> own_;
};

}  // namespace queues
