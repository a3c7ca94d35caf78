// GuardedRows: what an env may access in one call, the rows of the batch and its action.
//
// In a debug build (compile(..., debug=True) defines ENVFLEET_DEBUG), they are copies, each between two guard zones. The
// compiler calls one of the functions at the end of this file before each access to memory, if it was told to
// (ENVFLEET_CHECK_ACCESSES); an access to a guard zone is noted, and finish() throws. Writes that the compiler does not
// announce, such as those of memcpy(), are found by the bytes that they have changed. Under AddressSanitizer, the zones
// are poisoned instead, and every access to them ends the process with a report.
//
// In any other build, this is a pointer to the rows of the batch, and costs nothing.
//
// Thread safety: an object belongs to the call that made it, and to its thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "envfleet/abi.h"
#include "envfleet/out.h"
#include "envfleet/rows.h"

#ifdef ENVFLEET_DEBUG

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#if defined(__SANITIZE_ADDRESS__) && !defined(ENVFLEET_CHECK_ACCESSES)
#define ENVFLEET_HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ENVFLEET_HAS_ASAN 1
#endif
#endif
#ifdef ENVFLEET_HAS_ASAN
#include <sanitizer/asan_interface.h>
#define ENVFLEET_POISON(begin, size) ASAN_POISON_MEMORY_REGION(begin, size)
#define ENVFLEET_UNPOISON(begin, size) ASAN_UNPOISON_MEMORY_REGION(begin, size)
#else
#define ENVFLEET_POISON(begin, size) static_cast<void>(0)
#define ENVFLEET_UNPOISON(begin, size) static_cast<void>(0)
#endif

#endif  // ENVFLEET_DEBUG

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

namespace detail {

#ifndef ENVFLEET_DEBUG

class GuardedRows {
 public:
  // count: how many rows from first_row on the env may access.
  GuardedRows(const ef_rows& rows, const std::vector<Column>&, const std::vector<Column>&, std::int64_t, int)
      : rows_(rows) {}
  const ef_rows* rows() const { return &rows_; }
  template <class T>
  const T* action(const T* given, std::int64_t) {
    return given;
  }
  template <class T, std::size_t N>
  const auto& action(const T (&given)[N]) {
    return given;
  }
  void finish() {}

 private:
  const ef_rows& rows_;
};

#else

class GuardedRows;
inline thread_local GuardedRows* watching = nullptr;  // whose copies the env that runs in this thread may access

class GuardedRows {
 public:
  GuardedRows(const ef_rows& rows, const std::vector<Column>& obs, const std::vector<Column>& info, std::int64_t first_row,
              int count)
      : rows_(rows), first_row_(first_row), count_(count) {
    std::int64_t num_bytes = kGuardBytes + kMaxActionBytes + kGuardBytes;
    for (const auto* columns : {&obs, &info}) {
      for (const Column& column : *columns) num_bytes += padded(column.row_bytes * count) + kGuardBytes;
    }
    if (memory().size() < static_cast<std::size_t>(num_bytes)) memory().resize(static_cast<std::size_t>(num_bytes));
    begin_ = next_ = memory().data();
    add_guard();
    lend_columns("observation", obs, rows.obs, obs_);
    lend_columns("info", info, rows.info, info_);
    num_columns_ = regions_.size();
    rows_.obs = obs_.data();
    rows_.info = info_.data();
    watching = this;
  }
  GuardedRows(const GuardedRows&) = delete;
  GuardedRows& operator=(const GuardedRows&) = delete;
  ~GuardedRows() { stop(); }

  const ef_rows* rows() const { return &rows_; }

  // A copy of the action, at most once per object.
  template <class T>
  const T* action(const T* given, std::int64_t num_bytes) {
    watching = nullptr;
    if (num_bytes <= kMaxActionBytes) {
      char* copy = lend(given, num_bytes);
      regions_.push_back({copy, num_bytes, sizeof(T), "the action"});
      add_guard();
      given = reinterpret_cast<const T*>(copy);
    }
    watching = this;
    return given;
  }

  template <class T, std::size_t N>
  const auto& action(const T (&given)[N]) {
    return *reinterpret_cast<const T(*)[N]>(action(&given[0], sizeof given));
  }

  // After the env has returned: copies the rows to the batch, or throws if the env went past the end of one.
  void finish() {
    stop();
    if (!has_violation_) find_overwritten();
    if (has_violation_) {
      throw std::out_of_range(std::string(is_write_ ? "wrote" : "read") + " index " + std::to_string(index_) + " of " +
                              regions_[violated_].name + ", whose size is " +
                              std::to_string(regions_[violated_].num_bytes / regions_[violated_].element_bytes));
    }
    for (std::size_t i = 0; i < num_columns_; ++i) {
      std::memcpy(originals_[i], regions_[i].begin, static_cast<std::size_t>(regions_[i].num_bytes));
    }
    begin_ = next_ = nullptr;  // the memory is for the next object of this thread
  }

  // For the functions that the compiler calls.
  void note(const char* address, std::int64_t num_bytes, bool is_write) {
    if (has_violation_ || address + num_bytes <= begin_ || address >= next_) return;
    for (const Region& region : regions_) {
      if (address >= region.begin && address + num_bytes <= region.begin + region.num_bytes) return;
    }
    // Of an access that begins inside, the first byte outside.
    for (const Region& region : regions_) {
      const char* end = region.begin + region.num_bytes;
      if (address >= region.begin && address < end) address = end;
    }
    report(address, is_write);
  }

 private:
  static constexpr std::int64_t kGuardBytes = 32 * 1024;
  static constexpr std::int64_t kMaxActionBytes = 64 * 1024;
  static constexpr char kUntouched = '\x5a';

  struct Region {
    char* begin;
    std::int64_t num_bytes, element_bytes;
    std::string name;
  };

  static std::vector<char>& memory() {
    static thread_local std::vector<char> bytes;
    return bytes;
  }
  static std::int64_t padded(std::int64_t num_bytes) { return (num_bytes + 63) / 64 * 64; }

  void lend_columns(const char* kind, const std::vector<Column>& columns, void* const* base, std::vector<void*>& lent) {
    for (std::size_t k = 0; k < columns.size(); ++k) {
      const std::int64_t num_bytes = columns[k].row_bytes * count_;
      char* original = row_at(base[k], columns[k].row_bytes, first_row_);
      char* copy = lend(original, num_bytes);
      regions_.push_back({copy, num_bytes, size_of(columns[k].dtype),
                          std::string(kind) + " " + std::to_string(k) + " (\"" + columns[k].name + "\")"});
      originals_.push_back(original);
      lent.push_back(copy - columns[k].row_bytes * first_row_);
      add_guard();
    }
  }

  // Copies bytes behind what is there, and the padding after them as a part of the guard zone that follows.
  char* lend(const void* given, std::int64_t num_bytes) {
    char* copy = next_;
    ENVFLEET_UNPOISON(copy, static_cast<std::size_t>(num_bytes));
    if (num_bytes > 0) std::memcpy(copy, given, static_cast<std::size_t>(num_bytes));
    next_ += num_bytes;
    return copy;
  }

  void add_guard() {
    const std::int64_t used = next_ - begin_;
    const std::int64_t num_bytes = padded(used) - used + kGuardBytes;
    ENVFLEET_UNPOISON(next_, static_cast<std::size_t>(num_bytes));
    std::memset(next_, kUntouched, static_cast<std::size_t>(num_bytes));
    ENVFLEET_POISON(next_, static_cast<std::size_t>(num_bytes));
    next_ += num_bytes;
  }

  void stop() {
    if (watching == this) watching = nullptr;
    ENVFLEET_UNPOISON(begin_, static_cast<std::size_t>(next_ - begin_));
  }

  void find_overwritten() {
    char* from = begin_;
    for (std::size_t i = 0; i <= regions_.size() && !has_violation_; ++i) {
      char* to = i < regions_.size() ? regions_[i].begin : next_;
      const bool is_untouched = from == to || (*from == kUntouched && std::memcmp(from, from + 1, to - from - 1) == 0);
      const auto was_written = [](char byte) { return byte != kUntouched; };
      if (!is_untouched) report(std::find_if(from, to, was_written), true);
      if (i < regions_.size()) from = to + regions_[i].num_bytes;
    }
  }

  // The row that is closest to an address outside of all.
  void report(const char* address, bool is_write) {
    std::int64_t closest = -1;
    for (std::size_t i = 0; i < regions_.size(); ++i) {
      const Region& region = regions_[i];
      const std::int64_t distance =
          address < region.begin ? region.begin - address : address - region.begin - region.num_bytes + 1;
      if (closest >= 0 && distance >= closest) continue;
      closest = distance;
      violated_ = i;
      const std::int64_t offset = address - region.begin;
      index_ = offset >= 0 ? offset / region.element_bytes : -((-offset + region.element_bytes - 1) / region.element_bytes);
    }
    has_violation_ = closest >= 0;
    is_write_ = is_write;
  }

  ef_rows rows_;
  const std::int64_t first_row_;
  const int count_;
  char* begin_ = nullptr;
  char* next_ = nullptr;
  std::vector<Region> regions_;  // the columns, then the action
  std::size_t num_columns_ = 0;
  std::vector<void*> originals_, obs_, info_;
  bool has_violation_ = false, is_write_ = false;
  std::size_t violated_ = 0;
  std::int64_t index_ = 0;
};

#endif  // ENVFLEET_DEBUG

}  // namespace detail

}  // namespace envfleet

#pragma GCC visibility pop

#ifdef ENVFLEET_CHECK_ACCESSES

// What gcc calls with -fsanitize=kernel-address, as the Linux kernel defines it. Not instrumented itself: it would call
// itself. Not inline: no use of them is visible to the compiler before its last passes.
#define ENVFLEET_UNCHECKED extern "C" __attribute__((visibility("hidden"), no_sanitize("kernel-address"), used, weak)) void

extern "C" __attribute__((visibility("hidden"), no_sanitize("kernel-address"),
                          weak)) void envfleet_note_access(const void* address, std::size_t size, bool is_write) noexcept {
  envfleet::detail::GuardedRows* const rows = envfleet::detail::watching;
  if (rows == nullptr) return;
  envfleet::detail::watching = nullptr;  // note() is checked like any other code
  rows->note(static_cast<const char*>(address), static_cast<std::int64_t>(size), is_write);
  envfleet::detail::watching = rows;
}

#define ENVFLEET_ACCESS(size)                                                                                      \
  ENVFLEET_UNCHECKED __asan_load##size##_noabort(const void* p) noexcept { envfleet_note_access(p, size, false); } \
  ENVFLEET_UNCHECKED __asan_store##size##_noabort(const void* p) noexcept { envfleet_note_access(p, size, true); }
ENVFLEET_ACCESS(1)
ENVFLEET_ACCESS(2)
ENVFLEET_ACCESS(4)
ENVFLEET_ACCESS(8)
ENVFLEET_ACCESS(16)
ENVFLEET_UNCHECKED __asan_loadN_noabort(const void* p, std::size_t size) noexcept { envfleet_note_access(p, size, false); }
ENVFLEET_UNCHECKED __asan_storeN_noabort(const void* p, std::size_t size) noexcept { envfleet_note_access(p, size, true); }
ENVFLEET_UNCHECKED __asan_handle_no_return() noexcept {}
ENVFLEET_UNCHECKED __asan_before_dynamic_init(const void*) noexcept {}
ENVFLEET_UNCHECKED __asan_after_dynamic_init() noexcept {}
#undef ENVFLEET_ACCESS
#undef ENVFLEET_UNCHECKED

#endif  // ENVFLEET_CHECK_ACCESSES
