// LaneState: the numbers of several envs that step_lanes() steps at once. LaneOut: where it writes their rows.
//
// For envs whose step takes a few nanoseconds: when the arithmetic is written over several envs side by side, the compiler
// turns it into vector instructions. See step_lanes in env.h.
//
// Thread safety: as for Out.
// Invariants: the rows of the lanes are contiguous in every column, and zero at first, as those of Out. The columns of a
// LaneState and of a LaneOut do not overlap.
#pragma once

#include <cstdint>
#include <vector>

#include "envfleet/abi.h"
#include "envfleet/out.h"

// Compiles a function for several generations of x86 and selects one at load time. All of them round alike, as long as
// nothing is contracted into fused multiply-adds. gcc knows these generations from version 12 on.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) && (!defined(ENVFLEET_HAS_AVX2) || ENVFLEET_HAS_AVX2)
#define ENVFLEET_HAS_VECTOR_CLONES 1
#define ENVFLEET_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ENVFLEET_HAS_VECTOR_CLONES 0
#define ENVFLEET_VECTOR_CLONES
#endif

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

// The numbers of envs that declare lane_state(), side by side: state[k][lane] is element k of a lane.
template <class Number, int kNumbers>
struct LaneState {
  std::uint32_t kind;  // lane_kind() of all these envs; 0 if they do not declare it
  Number* columns[kNumbers];

  Number* operator[](int k) const { return columns[k]; }
};

template <int kLanes>
class LaneOut {
 public:
  double reward[kLanes] = {};
  std::uint8_t terminated[kLanes] = {};

  // The first lane's row of observation array k; the next lane's row follows it.
  template <class T>
  T* obs(int k = 0) {
    return first_.template obs<T>(k);
  }

  explicit LaneOut(const Out& first) : first_(first) {}

 private:
  Out first_;
};

}  // namespace envfleet

#pragma GCC visibility pop
