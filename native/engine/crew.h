// Crew: the threads of one engine.
//
// A thread asks its work function for something to do, again and again; when there is
// nothing it watches the bell for a short while and then sleeps on it.
//
// Thread safety: summon() and start() from the caller's thread; stop() once.
// Invariant: work published before summon() is seen by a thread that was awake or asleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace envfleet::engine {

class Crew {
 public:
  // work(worker_index) does a piece of work and says whether there was any. It must keep
  // alive what it uses: a thread that is stuck in an env outlives the engine.
  using Work = std::function<bool(int worker_index)>;

  Crew(int affinity_offset, bool may_spin);
  ~Crew();

  // Starts threads until there are `count`; a pool that never needs one never has one.
  void start(int count, const Work& work);
  int size() const { return static_cast<int>(threads_.size()); }

  void summon(int workers);

  // Asks all threads to leave after the piece of work in hand and waits for them.
  // False: some did not within the limit; they are left to themselves.
  bool stop(std::int64_t timeout_ns);

 private:
  struct Shared {
    alignas(64) std::atomic<std::uint32_t> bell{0};
    std::atomic<std::int32_t> sleepers{0};
    std::atomic<bool> stopping{false};
    alignas(64) std::atomic<std::uint32_t> num_left{0};
  };

  static void run(const std::shared_ptr<Shared>& shared, const Work& work, int worker_index, bool may_spin);

  const int affinity_offset_;
  const bool may_spin_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::vector<std::thread> threads_;
};

}  // namespace envfleet::engine
