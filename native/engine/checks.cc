#include "checks.h"

#include <algorithm>
#include <cstring>

namespace envfleet::engine {

bool IdChecker::accepts(Engine& engine, const std::int32_t* env_ids, std::int64_t count) {
  if (++stamp_ == 0) {  // wrapped: old stamps would look new
    std::fill(stamps_.begin(), stamps_.end(), 0);
    stamp_ = 1;
  }
  const auto num_envs = static_cast<std::uint32_t>(stamps_.size());
  const std::uint8_t* in_flight = engine.in_flight();
  for (std::int64_t i = 0; i < count; ++i) {
    const auto id = static_cast<std::uint32_t>(env_ids[i]);
    if (id >= num_envs || stamps_[id] == stamp_ || in_flight[id] != 0) return false;
    stamps_[id] = stamp_;
  }
  return true;
}

bool may_step(Engine& engine, const std::int32_t* env_ids, std::int64_t count) {
  const bool ends_matter = engine.options().autoreset == EF_DISABLED;
  if (!ends_matter && !engine.needs_attention()) return true;
  const std::uint8_t* phases = engine.phases();
  const auto may = [&](std::int32_t id) { return phases[id] == EF_RUNNING || (phases[id] == EF_ENDED && !ends_matter); };
  for (std::int64_t i = 0; i < count; ++i) {
    if (!may(env_ids != nullptr ? env_ids[i] : static_cast<std::int32_t>(i))) return false;
  }
  // All of them looked at and well: no need to look again until something happens.
  if (env_ids == nullptr && !ends_matter) engine.set_attention(false);
  return true;
}

ActionStore::ActionStore(const ef_array& space, bool is_wide)
    : is_wide_(is_wide), kind_(space.kind), dtype_(space.dtype), start_(space.start), count_(space.count) {
  for (std::int32_t axis = 0; axis < space.ndim; ++axis) size_ *= space.shape[axis];
  if (kind_ == EF_MULTI_DISCRETE) nvec_.assign(space.nvec, space.nvec + size_);
  if (kind_ == EF_BOX) {
    low_.resize(size_);
    high_.resize(size_);
    for (std::int64_t i = 0; i < size_; ++i) {
      low_[i] = space.low[space.num_bounds == 1 ? 0 : i];
      high_[i] = space.high[space.num_bounds == 1 ? 0 : i];
      if (dtype_ == EF_FLOAT32) {
        // As the space in Python has them: a bound of 0.1 is the float32 next to it.
        low_[i] = static_cast<float>(low_[i]);
        high_[i] = static_cast<float>(high_[i]);
      }
    }
  }
}

bool ActionStore::takes(std::int32_t dtype) const {
  switch (kind_) {
    case EF_DISCRETE:
    case EF_MULTI_DISCRETE:
      return dtype == EF_INT32 || dtype == EF_INT64;
    default:
      return dtype == dtype_ || (dtype_ == EF_FLOAT32 && dtype == EF_FLOAT64);
  }
}

// in_range(value, element) judges the value after conversion to Target's precision.
template <class Source, class Target, class InRange>
bool ActionStore::store_as(const ActionSlots& slots, const void* actions, const std::int32_t* env_ids, std::int64_t count,
                           InRange in_range) const {
  const auto* source = static_cast<const Source*>(actions);
  bool all_in_range = true;
  const auto store_row = [&](Target* target, const Source* row) {
    for (std::int64_t k = 0; k < size_; ++k) {
      all_in_range &= in_range(row[k], k);
      target[k] = static_cast<Target>(row[k]);
    }
  };
  if (env_ids == nullptr && size_ == 1) {
    auto* target = reinterpret_cast<Target*>(slots.base);
    for (std::int64_t i = 0; i < count; ++i) {
      all_in_range &= in_range(source[i], 0);
      target[i] = static_cast<Target>(source[i]);
    }
    return all_in_range;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t env_id = env_ids != nullptr ? env_ids[i] : static_cast<std::int32_t>(i);
    store_row(reinterpret_cast<Target*>(slots.of(env_id)), source + i * size_);
  }
  return all_in_range;
}

template <class Source, class Target>
bool ActionStore::store_discrete(const ActionSlots& slots, const void* actions, const std::int32_t* env_ids,
                                 std::int64_t count) const {
  if (kind_ == EF_DISCRETE) {
    const auto start = static_cast<std::uint64_t>(start_);
    const auto bound = static_cast<std::uint64_t>(count_);
    return store_as<Source, Target>(slots, actions, env_ids, count, [=](Source value, std::int64_t) {
      return static_cast<std::uint64_t>(static_cast<std::int64_t>(value)) - start < bound;
    });
  }
  const std::int64_t* nvec = nvec_.data();
  return store_as<Source, Target>(slots, actions, env_ids, count,
                                  [=](Source value, std::int64_t k) { return value >= 0 && value < nvec[k]; });
}

template <class Source, class Target>
bool ActionStore::store_box(const ActionSlots& slots, const void* actions, const std::int32_t* env_ids,
                            std::int64_t count) const {
  const double* low = low_.data();
  const double* high = high_.data();
  return store_as<Source, Target>(slots, actions, env_ids, count, [=](Source value, std::int64_t k) {
    const auto stored = static_cast<double>(static_cast<Target>(value));
    return stored >= low[k] && stored <= high[k];  // false for NaN
  });
}

bool ActionStore::store(const ActionSlots& slots, const void* actions, std::int32_t dtype, const std::int32_t* env_ids,
                        std::int64_t count) const {
  if (kind_ == EF_DISCRETE || kind_ == EF_MULTI_DISCRETE) {
    using Narrow = std::int32_t;
    using Wide = std::int64_t;
    if (is_wide_) {
      return dtype == EF_INT64 ? store_discrete<Wide, Wide>(slots, actions, env_ids, count)
                               : store_discrete<Narrow, Wide>(slots, actions, env_ids, count);
    }
    return dtype == EF_INT64 ? store_discrete<Wide, Narrow>(slots, actions, env_ids, count)
                             : store_discrete<Narrow, Narrow>(slots, actions, env_ids, count);
  }
  if (kind_ == EF_MULTI_BINARY) {
    return store_as<std::int8_t, std::int8_t>(slots, actions, env_ids, count,
                                              [](std::int8_t value, std::int64_t) { return value == 0 || value == 1; });
  }
  switch (dtype) {
    case EF_FLOAT64:
      return dtype_ == EF_FLOAT32 ? store_box<double, float>(slots, actions, env_ids, count)
                                  : store_box<double, double>(slots, actions, env_ids, count);
    case EF_FLOAT32:
      return store_box<float, float>(slots, actions, env_ids, count);
    case EF_UINT8:
      return store_box<std::uint8_t, std::uint8_t>(slots, actions, env_ids, count);
    case EF_INT8:
      return store_box<std::int8_t, std::int8_t>(slots, actions, env_ids, count);
    case EF_INT32:
      return store_box<std::int32_t, std::int32_t>(slots, actions, env_ids, count);
    default:
      return false;
  }
}

}  // namespace envfleet::engine
