// The quick "yes" to a call's input: ids and actions that are right as they are.
//
// Whatever is not plainly right is answered with false; the Python layer then looks
// again, slowly, and either converts it or explains what is wrong. Nothing moves here:
// only action slots of envs that are idle are written.
#pragma once

#include <cstdint>
#include <vector>

#include "engine.h"
#include "envfleet/abi.h"

namespace envfleet::engine {

// Ids: in range, distinct, idle.
class IdChecker {
 public:
  explicit IdChecker(std::int32_t num_envs) : stamps_(num_envs, 0) {}
  bool accepts(Engine& engine, const std::int32_t* env_ids, std::int64_t count);

 private:
  std::vector<std::uint32_t> stamps_;
  std::uint32_t stamp_ = 0;
};

// Every env named may be stepped: it was reset, is not broken, and not ended where
// nothing resets it. env_ids null: all.
bool may_step(Engine& engine, const std::int32_t* env_ids, std::int64_t count);

// Checks an action batch and stores it in action slots.
class ActionStore {
 public:
  // is_wide: discrete actions are stored as int64 and not as int32.
  explicit ActionStore(const ef_array& space, bool is_wide = false);

  // dtype of `actions`: the space's own, int32 or int64 for the discrete kinds, or float64
  // for float32. env_ids null: row i is for env i.
  bool takes(std::int32_t dtype) const;
  // Whether all are in the space. Stores nothing.
  bool accepts(const void* actions, std::int32_t dtype, std::int64_t count) const;
  // False: some were not in the space; what is in the slots then must not be used.
  bool store(const ActionSlots& slots, const void* actions, std::int32_t dtype, const std::int32_t* env_ids,
             std::int64_t count) const;
  // For actions that were accepted: a row that is not in the space any more, because another thread has written to the
  // caller's array since, is stored as some action that is.
  void store_accepted(const ActionSlots& slots, const void* actions, std::int32_t dtype, const std::int32_t* env_ids,
                      std::int64_t count) const;
  // Of one action of this dtype.
  std::int64_t row_bytes(std::int32_t dtype) const;

 private:
  // use(source, target, in_range): values of the types to read and to store, and in_range(value, element), which judges a
  // value after conversion to the target's precision.
  template <class Use>
  bool with_types(std::int32_t dtype, Use&& use) const;
  template <class Source, class Target, class InRange>
  bool store_as(const ActionSlots& slots, const void* actions, const std::int32_t* env_ids, std::int64_t count,
                InRange in_range) const;

  bool is_wide_;
  std::int32_t kind_;
  std::int32_t dtype_;
  std::int64_t size_ = 1;  // elements of one action
  std::int64_t start_, count_;
  std::vector<std::int64_t> nvec_;
  std::vector<double> low_, high_;
};

}  // namespace envfleet::engine
