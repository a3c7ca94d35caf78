// ThreadPool: the threads of one engine.
//
// A thread calls its work function again and again; when there is no work it spins for a short time, until the next
// notify(), and then sleeps.
//
// Thread safety: start(), notify() and stop() from the caller's thread, wake_more() from any.
// Invariant: work that was published before notify() is seen by every thread that notify() was meant for, awake or asleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace envfleet::engine {

class ThreadStartError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ThreadPool {
 public:
  // work(worker_index) does a piece of work and returns whether there was any. It must keep alive what it uses: a thread
  // that is stuck in an env outlives the engine.
  using Work = std::function<bool(int worker_index)>;

  // No thread is created before start().
  ThreadPool(int max_threads, int affinity_offset, bool may_spin);
  ~ThreadPool();

  // Starts all max_threads threads, or those that are missing. Throws ThreadStartError if the system has no more.
  void start(const Work& work);
  int size() const { return static_cast<int>(threads_.size()); }

  // There is work for the first num_threads threads. This call wakes one or two sleeping threads, and wake_more() the
  // others: waking 15 threads takes longer than stepping a thousand cheap envs.
  void notify(int num_threads);
  // Called by a thread that found work and left some: wakes one or two of those that the last notify() was meant for.
  void wake_more();

  bool has_sleepers() const { return shared_->num_asleep.load(std::memory_order_relaxed) > 0; }

  // Asks all threads to leave after their current piece of work, and waits for them. Returns false if some did not leave
  // within the limit; they are left behind.
  bool stop(std::int64_t timeout_ns);

 private:
  // Each thread sleeps on a word of its own; setting it to 0 and waking it ends the sleep.
  struct alignas(64) Sleeper {
    std::atomic<std::uint32_t> is_asleep{0};
  };
  struct Shared {
    explicit Shared(int num_threads) : sleepers(num_threads) {}
    // Counts the calls of notify() in its upper half; the lower half is how many threads the last one was meant for.
    alignas(64) std::atomic<std::uint64_t> notice{0};
    std::atomic<bool> stopping{false};
    alignas(64) std::atomic<std::int32_t> num_asleep{0};
    alignas(64) std::atomic<std::uint32_t> num_left{0};
    std::vector<Sleeper> sleepers;
  };

  static void run(const std::shared_ptr<Shared>& shared, const Work& work, int worker_index, bool may_spin);

  const int max_threads_;
  const int affinity_offset_;
  const bool may_spin_;
  const std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
};

}  // namespace envfleet::engine
