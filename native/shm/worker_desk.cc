#include "worker_desk.h"

#include <atomic>
#include <bit>
#include <thread>

#include "cores.h"

namespace envfleet::rows {

namespace {

constexpr std::int64_t kSpinNs = 50'000;

}  // namespace

void WorkerDesk::sleep(std::int64_t start_ns) {
  Header& header = this->header();
  const auto is_wanted = [&] {
    return words_->request_head.load(std::memory_order_seq_cst) != tail_ || header.stop.load(std::memory_order_seq_cst) != 0;
  };
  if (spin_until(is_wanted, start_ns)) return;
  words_->core.store(engine::this_core(), std::memory_order_relaxed);
  words_->sleeps.store(1, std::memory_order_seq_cst);
  for (;;) {
    const std::uint32_t seen = header.work_bell.load(std::memory_order_seq_cst);
    // After the bell was read: what is asked from here on rings it.
    if (is_wanted()) break;
    engine::wait_shared_while_equal(header.work_bell, seen, -1, bit_of(worker_));
  }
  words_->sleeps.store(0, std::memory_order_seq_cst);
}

// A core that falls idle takes long to wake up: as many workers as there are cores look out for a while first.
// They stand back at once for whoever else wants the core, the caller or a worker that was put beside them.
template <class IsWanted>
bool WorkerDesk::spin_until(IsWanted&& is_wanted, std::int64_t start_ns) {
  if (max_spinners_ <= 0) return false;
  std::atomic<std::uint64_t>& spinners = header().spinners;
  const std::uint64_t own = spin_bit_of(worker_);
  bool is_done = false;
  if (std::popcount(spinners.fetch_or(own)) < max_spinners_) {
    do {
      for (int i = 0; i < 32 && !is_done; ++i) {
        is_done = is_wanted();
        engine::relax_cpu();
      }
      if (is_done) break;
      std::this_thread::yield();
    } while (engine::now_ns() - start_ns < kSpinNs);
  }
  spinners.fetch_and(~own);
  return is_done;
}

}  // namespace envfleet::rows
