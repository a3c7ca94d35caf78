// ThreadCountController: chooses how many threads run a batch, from one to all, by measurement.
//
// For batches of about one size it keeps what a row took lately with each count, uses the best, and runs a few batches with
// another count at intervals: the next larger or smaller one, at times one far away. While nothing changes, trials are
// rare; when batches become slow, it forgets what it knew and tries far smaller counts at once. Intervals are times, not
// numbers of batches: a pool that steps twice a second and one that steps a hundred thousand times both follow the
// machine, and a count that suited a disturbed machine is left tens of milliseconds after the disturbance.
//
// Two figures describe a count. What a batch typically takes is known after a few batches, and is compared between counts.
// What batches take on average is known only after some milliseconds: a thread that shares its core with another program
// holds up one batch in ten or a hundred, but for a time slice of the scheduler. While the average with the current count is
// far above the typical batch, longer trials show whether it is better with fewer threads; a count that was left for that
// reason is not used again for a while, which doubles each time.
//
// It has no clock: callers pass times, and tests pass made-up ones.
// Thread safety: one thread at a time.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

namespace envfleet::engine {

class ThreadCountController {
 public:
  explicit ThreadCountController(int max_threads) {
    for (int count = 1; count < max_threads; count = std::max(count + 1, count * 6 / 5)) counts_.push_back(count);
    // One below the maximum leaves a core to the caller's other work, or to a neighbour's.
    if (max_threads > 2 && counts_.back() < max_threads - 1) counts_.push_back(max_threads - 1);
    counts_.push_back(max_threads);
  }

  // How many threads are to run the next batch of num_rows. ns_per_row: what a row costs one thread; 0 if unknown.
  int choose(std::int64_t num_rows, double ns_per_row) {
    const double total_ns = ns_per_row * static_cast<double>(num_rows);
    if (ns_per_row > 0 && total_ns < kNeverWorthSharingNs) return 1;
    Size& size = size_of(num_rows);
    size.row_cost_ns = ns_per_row;
    if (size.current < 0) {
      // Of unknown cost: it may be high.
      if (ns_per_row <= 0) return counts_.back();
      size.current = first_guess(total_ns);
      size.estimates.resize(counts_.size());
      size.num_urgent = kNumParts;
    }
    return counts_[size.in_use()];
  }

  // What a batch took that ran with the count that choose() returned, and when it ended.
  void record(std::int64_t num_rows, int num_threads, std::int64_t duration_ns, std::int64_t now_ns) {
    Size& size = size_of(num_rows);
    if (size.current < 0 || counts_[size.in_use()] != num_threads) return;
    size.last_batch_ns = duration_ns;
    const double row_ns = static_cast<double>(std::max<std::int64_t>(duration_ns, 1)) / static_cast<double>(num_rows);
    // A long trial counts batches that are held up, so one of them does not end it.
    const bool is_hopeless =
        size.is_on_trial() && !size.is_long && duration_ns > kLongBatchNs && row_ns > kHopeless * size.reference_ns();
    // The first batches after a change find threads asleep and rows in other cores' caches.
    if (size.num_to_skip > 0 && !is_hopeless) {
      --size.num_to_skip;
      return;
    }
    size.num_to_skip = 0;
    Estimate& estimate = size.estimates[size.in_use()];
    estimate.mean.add(row_ns, duration_ns);
    size.window.add(row_ns, duration_ns);
    if (!size.window.is_full(size.is_on_trial() && size.is_urgent) && !is_hopeless) return;
    const double result_ns = is_hopeless ? row_ns : size.window.typical();
    const std::int64_t window_ns = size.window.total_ns();
    size.window = {};
    // An aborted trial shows that the count is bad, but not by how much.
    if (!is_hopeless) estimate.add(result_ns, now_ns);
    if (size.is_on_trial()) {
      if (size.is_long && !estimate.mean.is_known()) return;
      end_trial(size, window_ns, now_ns);
    } else {
      if (size.estimates[size.current].num_slow == kSlowInARow) size.forget(now_ns);
      move_to_best(size, now_ns);
    }
    if (size.is_on_trial()) return;
    if (size.estimates[size.current].is_steady()) size.become_steady(now_ns);
    if (size.estimates[size.current].is_unsteady() && now_ns >= size.next_long_trial_ns) begin_long_trial(size, now_ns);
    if (!size.is_on_trial() && now_ns >= size.next_trial_ns) begin_trial(size, now_ns);
  }

  const std::vector<int>& counts() const { return counts_; }

 private:
  // The durations of successive batches with one thread count. A sample is a batch, or as many short ones as make up
  // kSampleNs: a clock's error counts for less.
  class Window {
   public:
    void add(double row_ns, std::int64_t duration_ns) {
      sum_ += row_ns;
      ++num_summed_;
      summed_ns_ += duration_ns;
      total_ns_ += duration_ns;
      if (summed_ns_ < kSampleNs) return;
      samples_[num_samples_++] = sum_ / num_summed_;
      sum_ = 0;
      num_summed_ = 0;
      summed_ns_ = 0;
    }
    bool is_full(bool is_urgent) const {
      return num_samples_ == kMaxSamples || (num_samples_ >= kMinSamples && (is_urgent || total_ns_ >= kLongWindowNs));
    }
    // Without the slowest sample: a thread that loses its core once says nothing about the count. If it happens all the
    // time, it does, and the other samples show it.
    double typical() const {
      if (num_samples_ == 0) return num_summed_ > 0 ? sum_ / num_summed_ : 0;
      double sum = 0, slowest = 0;
      for (int i = 0; i < num_samples_; ++i) {
        sum += samples_[i];
        slowest = std::max(slowest, samples_[i]);
      }
      return num_samples_ == 1 ? sum : (sum - slowest) / (num_samples_ - 1);
    }
    std::int64_t total_ns() const { return total_ns_; }

   private:
    static constexpr int kMaxSamples = 8;
    static constexpr int kMinSamples = 3;
    static constexpr std::int64_t kSampleNs = 10'000;
    static constexpr std::int64_t kLongWindowNs = 4'000'000;
    std::array<double, kMaxSamples> samples_{};
    int num_samples_ = 0;
    double sum_ = 0;
    int num_summed_ = 0;
    std::int64_t summed_ns_ = 0, total_ns_ = 0;
  };

  // What a row took on average in the last batches, those included that were held up.
  class Mean {
   public:
    void add(double row_ns, std::int64_t duration_ns) {
      if (total_ns_ > 2 * kMeanNs && num_batches_ > 2 * kMeanBatches) {  // older batches count for less and less
        sum_ /= 2;
        num_batches_ /= 2;
        total_ns_ /= 2;
      }
      sum_ += row_ns;
      num_batches_ += 1;
      total_ns_ += static_cast<double>(duration_ns);
    }
    bool is_known() const { return total_ns_ >= kMeanNs && num_batches_ >= kMeanBatches; }
    double row_ns() const { return sum_ / num_batches_; }

   private:
    static constexpr double kMeanNs = 16e6;  // several time slices of the scheduler: fewer say little
    static constexpr double kMeanBatches = 16;
    double sum_ = 0, num_batches_ = 0, total_ns_ = 0;
  };

  // What a row took with one thread count lately; 0 until measured.
  struct Estimate {
    double row_ns = 0;             // in a typical batch
    std::int64_t measured_ns = 0;  // when
    int num_slow = 0;              // windows in a row that were much slower than the mean
    Mean mean;

    // Whether many batches are held up, or some for long.
    bool is_unsteady() const { return mean.is_known() && mean.row_ns() > kUnsteady * row_ns; }
    bool is_steady() const { return mean.is_known() && !is_unsteady(); }
    // What a row takes more on average than in a typical batch.
    double added_ns() const { return mean.is_known() ? std::max(mean.row_ns() - row_ns, 0.0) : 0; }
    // What a row takes on average. added_ns: that of the current count, which stands in as long as this one's is unknown.
    double expected_ns(double added_ns) const {
      return mean.is_known() ? std::max(mean.row_ns(), row_ns) : row_ns + added_ns;
    }

    bool is_fresh(std::int64_t now_ns) const { return row_ns > 0 && now_ns - measured_ns < kFreshNs; }
    void add(double result_ns, std::int64_t now_ns) {
      // A mean over some windows evens out noise. An old one says nothing, and a much better result is believed at once:
      // a disturbance is over.
      num_slow = result_ns > kDisturbed * row_ns ? num_slow + 1 : 0;
      const bool replaces = !is_fresh(now_ns) || result_ns < kMuchBetter * row_ns || num_slow == kSlowInARow;
      row_ns = replaces ? result_ns : row_ns + kWeight * (result_ns - row_ns);
      measured_ns = now_ns;
    }
  };

  // Batches of about one size.
  struct Size {
    int current = -1;  // indices into counts_
    int trial = -1;
    int step = 1;  // the direction of the last trial
    int num_trials = 0;
    int num_urgent = 0;      // far trials still to make, as batches have become slow
    bool is_urgent = false;  // the present trial is one of them: a short one
    bool is_long = false;    // the present trial is long enough to show what batches take on average
    int num_long_trials = 0;
    std::int64_t long_interval_ns = kShortestRetryNs, next_long_trial_ns = 0;
    int left = -1;  // the index that was left because batches were held up; -1: none
    // With the counts from this index on, batches are held up, and with the current one they are not: those are not used
    // before retry_ns.
    int unsteady_from = kNoIndex;
    std::int64_t retry_ns = 0, retry_after_ns = kShortestRetryNs;
    int num_to_skip = 0;
    std::int64_t last_batch_ns = 0;
    double row_cost_ns = 0;
    std::vector<Estimate> estimates;  // by index into counts_
    std::int64_t interval_ns = kShortestIntervalNs;
    std::int64_t next_trial_ns = 0;
    Window window;

    bool is_on_trial() const { return trial >= 0; }
    int in_use() const { return is_on_trial() ? trial : current; }
    double reference_ns() const { return estimates[current].row_ns; }
    bool is_permitted(int index, std::int64_t now_ns) const { return index < unsteady_from || now_ns >= retry_ns; }
    // Batches are not held up with the current count.
    void become_steady(std::int64_t now_ns) {
      if (left > current) {
        unsteady_from = left;
        retry_ns = now_ns + retry_after_ns;
        retry_after_ns = std::min(2 * retry_after_ns, kLongestRetryNs);
      } else if (current >= unsteady_from) {
        unsteady_from = kNoIndex;
        retry_after_ns = kShortestRetryNs;
      }
      left = -1;
    }
    // The machine has changed: what other counts took before says nothing.
    void forget(std::int64_t now_ns) {
      for (Estimate& estimate : estimates) {
        if (&estimate != &estimates[current]) estimate = {};
      }
      estimates[current].num_slow = 0;
      estimates[current].mean = {};
      interval_ns = kShortestIntervalNs;
      next_trial_ns = now_ns;
      num_urgent = kNumParts;
    }
  };

  Size& size_of(std::int64_t num_rows) { return sizes_[std::bit_width(static_cast<std::uint64_t>(num_rows))]; }

  int first_guess(double total_ns) const {
    int index = 0;
    while (index + 1 < num_counts() && counts_[index + 1] * kShareWorthWakingNs <= total_ns) ++index;
    return index;
  }

  int num_counts() const { return static_cast<int>(counts_.size()); }

  // A count that could not win even if half of the measured cost of a row were disturbance is not tried: with few
  // threads a batch of slow envs would take many times as long.
  bool is_worth_a_trial(const Size& size, int index) const {
    return index >= 0 && index < num_counts() && index != size.current &&
           0.5 * size.row_cost_ns / counts_[index] < size.reference_ns();
  }

  void begin_trial(Size& size, std::int64_t now_ns) {
    // Mostly neighbours; a far count now and then, since one thread may beat two and lose to eight, and at once where
    // batches have become slow: next to a count that is disturbed are others that are.
    size.is_urgent = size.num_urgent > 0;
    const bool goes_far = size.is_urgent || ++size.num_trials % kFarEvery == 0;
    const int part = size.is_urgent ? --size.num_urgent : size.num_trials / kFarEvery % (kNumParts + 1);
    const int far = part == kNumParts ? num_counts() - 1 : size.current * part / kNumParts;
    for (const int index : {goes_far ? far : size.current + size.step, size.current + size.step, size.current - size.step}) {
      if (!is_worth_a_trial(size, index) || !size.is_permitted(index, now_ns)) continue;
      size.step = index > size.current ? 1 : -1;
      size.trial = index;
      size.is_long = false;
      size.estimates[index].mean = {};
      size.num_to_skip = size.last_batch_ns > kLongBatchNs ? 1 : kNumToSkip;
      return;
    }
    size.next_trial_ns = now_ns + kLongestIntervalNs;
  }

  // With fewer threads, fewer of them share a core with something else.
  void begin_long_trial(Size& size, std::int64_t now_ns) {
    const int parts[] = {size.current - std::max(1, size.current / 8), size.current * 3 / 4, size.current / 2};
    const int index = parts[size.num_long_trials++ % 3];
    if (!is_worth_a_trial(size, index)) {
      size.next_long_trial_ns = now_ns + size.long_interval_ns;
      return;
    }
    size.trial = index;
    size.is_long = true;
    size.is_urgent = false;
    size.estimates[index].mean = {};
    size.num_to_skip = size.last_batch_ns > kLongBatchNs ? 1 : kNumToSkip;
  }

  void end_trial(Size& size, std::int64_t window_ns, std::int64_t now_ns) {
    const int tried = size.trial;
    size.trial = -1;
    if (size.is_long) {
      size.is_long = false;
      size.num_to_skip = 1;
      const bool has_moved = move_to_best(size, now_ns);
      size.long_interval_ns = has_moved ? kShortestRetryNs : std::min(2 * size.long_interval_ns, kLongestRetryNs);
      size.next_long_trial_ns = has_moved ? now_ns : now_ns + size.long_interval_ns;
      return;
    }
    if (move_to_best(size, now_ns) && size.current == tried) {
      // On in this direction at once.
      size.num_urgent = 0;
      size.interval_ns = kShortestIntervalNs;
      size.next_trial_ns = now_ns;
    } else {
      size.step = -size.step;
      size.interval_ns = std::min(2 * size.interval_ns, kLongestIntervalNs);
      size.next_trial_ns = now_ns + std::max(size.interval_ns, kWindowsBetweenTrials * window_ns);
      if (size.num_urgent > 0) size.next_trial_ns = now_ns;
      size.num_to_skip = 1;
    }
  }

  // To the count that is expected to be best, of those with a fresh estimate, if it is clearly better than the current one.
  // True: it moved.
  bool move_to_best(Size& size, std::int64_t now_ns) {
    const double added_ns = size.estimates[size.current].added_ns();
    const auto expected_ns = [&](int index) { return size.estimates[index].expected_ns(added_ns); };
    int best = size.current;
    for (int index = 0; index < num_counts(); ++index) {
      const Estimate& estimate = size.estimates[index];
      const bool is_candidate = estimate.is_fresh(now_ns) && size.is_permitted(index, now_ns);
      if (is_candidate && expected_ns(index) < expected_ns(best)) best = index;
    }
    const bool avoids_delays = best < size.current && size.estimates[size.current].is_unsteady();
    const double margin = avoids_delays ? kBetterOnAverage : best < size.current ? kBetterWithFewer : kBetterWithMore;
    if (best == size.current || expected_ns(best) >= margin * expected_ns(size.current)) return false;
    if (avoids_delays) size.left = size.current;
    size.current = best;
    return true;
  }

  static constexpr double kNeverWorthSharingNs = 4'000;
  static constexpr double kShareWorthWakingNs = 20'000;
  static constexpr double kBetterWithFewer = 0.99;  // fewer threads at the same speed leave cores to others
  static constexpr double kBetterWithMore = 0.97;
  static constexpr double kDisturbed = 1.4;
  static constexpr int kSlowInARow = 2;
  static constexpr double kMuchBetter = 0.7;
  static constexpr double kWeight = 0.3;  // of a window in the mean
  static constexpr std::int64_t kFreshNs = 200'000'000;
  static constexpr double kHopeless = 1.5;
  static constexpr double kUnsteady = 1.5;
  static constexpr double kBetterOnAverage = 0.8;  // averages of so few batches vary
  static constexpr int kNoIndex = std::numeric_limits<int>::max();
  static constexpr std::int64_t kShortestRetryNs = 50'000'000;
  static constexpr std::int64_t kLongestRetryNs = 400'000'000;
  static constexpr std::int64_t kLongBatchNs = 200'000;
  static constexpr std::int64_t kShortestIntervalNs = 1'000'000;
  static constexpr std::int64_t kLongestIntervalNs = 16'000'000;
  static constexpr std::int64_t kWindowsBetweenTrials = 10;
  static constexpr int kNumToSkip = 3;
  static constexpr int kFarEvery = 4;
  static constexpr int kNumParts = 4;  // far trials go to quarters of the current count, and to all threads

  std::vector<int> counts_;
  std::array<Size, 65> sizes_{};
};

}  // namespace envfleet::engine
