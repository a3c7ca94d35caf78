#include "engine/input_checks.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "envfleet/lanes.h"
#include "envfleet/spec.h"

namespace envfleet::engine {

namespace {

// Whether start <= value < start + count for all values. Without a comparison in the loop, since older vector
// instruction sets have none for 64 bits: a value is too low if its offset is negative, too high if last - offset is.
template <class Source>
bool all_below_plain(const Source* values, std::int64_t num_values, std::uint64_t start, std::uint64_t last) {
  std::uint64_t signs = 0;
  for (std::int64_t i = 0; i < num_values; ++i) {
    const std::uint64_t offset = static_cast<std::uint64_t>(static_cast<std::int64_t>(values[i])) - start;
    signs |= offset | (last - offset);
  }
  return signs >> 63 == 0;
}

ENVFLEET_VECTOR_CLONES bool all_below_wide(const std::int64_t* values, std::int64_t num_values, std::uint64_t start,
                                           std::uint64_t last) {
  return all_below_plain(values, num_values, start, last);
}

ENVFLEET_VECTOR_CLONES bool all_below_narrow(const std::int32_t* values, std::int64_t num_values, std::uint64_t start,
                                             std::uint64_t last) {
  return all_below_plain(values, num_values, start, last);
}

// The same, and stores the values as int32.
ENVFLEET_VECTOR_CLONES bool narrow_below(const std::int64_t* __restrict values, std::int32_t* __restrict targets,
                                         std::int64_t num_values, std::uint64_t start, std::uint64_t last) {
  std::uint64_t signs = 0;
  for (std::int64_t i = 0; i < num_values; ++i) {
    const std::uint64_t offset = static_cast<std::uint64_t>(values[i]) - start;
    signs |= offset | (last - offset);
    targets[i] = static_cast<std::int32_t>(values[i]);
  }
  return signs >> 63 == 0;
}

// False for NaN.
ENVFLEET_VECTOR_CLONES bool all_within(const float* values, std::int64_t num_values, float low, float high) {
  std::uint32_t num_outside = 0;
  for (std::int64_t i = 0; i < num_values; ++i) num_outside |= !(values[i] >= low) | !(values[i] <= high);
  return num_outside == 0;
}

bool all_below(const std::int64_t* values, std::int64_t num_values, std::int64_t start, std::int64_t count) {
  return all_below_wide(values, num_values, static_cast<std::uint64_t>(start), static_cast<std::uint64_t>(count) - 1);
}

bool all_below(const std::int32_t* values, std::int64_t num_values, std::int64_t start, std::int64_t count) {
  return all_below_narrow(values, num_values, static_cast<std::uint64_t>(start), static_cast<std::uint64_t>(count) - 1);
}

}  // namespace

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

template <class Source, class Target, class InRange>
bool ActionStore::store_as(const ActionSlots& slots, const void* actions, const std::int32_t* env_ids, std::int64_t count,
                           InRange in_range) const {
  const auto* source = static_cast<const Source*>(actions);
  bool all_in_range = true;
  if (env_ids == nullptr && size_ == 1) {
    auto* target = reinterpret_cast<Target*>(slots.base);
    if constexpr (std::is_same_v<Source, std::int64_t> && std::is_same_v<Target, std::int32_t>) {
      if (kind_ == EF_DISCRETE) {
        return narrow_below(source, target, count, static_cast<std::uint64_t>(start_),
                            static_cast<std::uint64_t>(count_) - 1);
      }
    }
    for (std::int64_t i = 0; i < count; ++i) {
      all_in_range &= in_range(source[i], 0);
      target[i] = static_cast<Target>(source[i]);
    }
    return all_in_range;
  }
  if (env_ids != nullptr && size_ == 1 && count > 0 && detail::is_consecutive(env_ids, count)) {
    const ActionSlots own = {slots.of(env_ids[0]), slots.slot_bytes};
    return store_as<Source, Target>(own, actions, nullptr, count, in_range);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    auto* target = reinterpret_cast<Target*>(slots.of(env_ids != nullptr ? env_ids[i] : static_cast<std::int32_t>(i)));
    for (std::int64_t k = 0; k < size_; ++k) {
      all_in_range &= in_range(source[i * size_ + k], k);
      target[k] = static_cast<Target>(source[i * size_ + k]);
    }
  }
  return all_in_range;
}

template <class Use>
bool ActionStore::with_types(std::int32_t dtype, Use&& use) const {
  using Narrow = std::int32_t;
  using Wide = std::int64_t;
  const auto discrete = [&](auto in_range) {
    if (is_wide_) return dtype == EF_INT64 ? use(Wide{}, Wide{}, in_range) : use(Narrow{}, Wide{}, in_range);
    return dtype == EF_INT64 ? use(Wide{}, Narrow{}, in_range) : use(Narrow{}, Narrow{}, in_range);
  };
  const auto box = [&]<class Source, class Target>(Source source, Target target) {
    const double* low = low_.data();
    const double* high = high_.data();
    return use(source, target, [=](Source value, std::int64_t k) {
      const auto stored = static_cast<double>(static_cast<Target>(value));
      return (stored >= low[k]) & (stored <= high[k]);  // false for NaN
    });
  };
  switch (kind_) {
    case EF_DISCRETE: {
      const auto start = static_cast<std::uint64_t>(start_);
      const auto bound = static_cast<std::uint64_t>(count_);
      return discrete([=](std::int64_t value, std::int64_t) { return static_cast<std::uint64_t>(value) - start < bound; });
    }
    case EF_MULTI_DISCRETE: {
      const std::int64_t* nvec = nvec_.data();
      return discrete([=](std::int64_t value, std::int64_t k) { return value >= 0 && value < nvec[k]; });
    }
    case EF_MULTI_BINARY:
      return use(std::int8_t{}, std::int8_t{}, [](std::int8_t value, std::int64_t) { return value == 0 || value == 1; });
    default:
      break;
  }
  switch (dtype) {
    case EF_FLOAT64:
      return dtype_ == EF_FLOAT32 ? box(double{}, float{}) : box(double{}, double{});
    case EF_FLOAT32:
      return box(float{}, float{});
    case EF_UINT8:
      return box(std::uint8_t{}, std::uint8_t{});
    case EF_INT8:
      return box(std::int8_t{}, std::int8_t{});
    case EF_INT32:
      return box(std::int32_t{}, std::int32_t{});
    default:
      return false;
  }
}

bool ActionStore::store(const ActionSlots& slots, const void* actions, std::int32_t dtype, const std::int32_t* env_ids,
                        std::int64_t count) const {
  return with_types(dtype, [&]<class Source, class Target>(Source, Target, auto in_range) {
    if (env_ids == nullptr) return store_as<Source, Target>(slots, actions, nullptr, count, in_range);
    // In groups: of envs in any order, some are still consecutive.
    bool all_in_range = true;
    for (std::int64_t begin = 0; begin < count; begin += detail::kGroupRows) {
      const std::int64_t size = std::min<std::int64_t>(count - begin, detail::kGroupRows);
      const Source* source = static_cast<const Source*>(actions) + begin * size_;
      all_in_range &= store_as<Source, Target>(slots, source, env_ids + begin, size, in_range);
    }
    return all_in_range;
  });
}

bool ActionStore::accepts(const void* actions, std::int32_t dtype, std::int64_t count) const {
  return with_types(dtype, [&]<class Source, class Target>(Source, Target, auto in_range) {
    const auto* source = static_cast<const Source*>(actions);
    if constexpr (std::is_same_v<Source, std::int64_t> || std::is_same_v<Source, std::int32_t>) {
      if (kind_ == EF_DISCRETE) return all_below(source, count, start_, count_);
    }
    // The bounds of a float32 space are float32 values, so comparing without conversion gives the same.
    if constexpr (std::is_same_v<Source, float> && std::is_same_v<Target, float>) {
      if (size_ == 1) return all_within(source, count, static_cast<float>(low_[0]), static_cast<float>(high_[0]));
    }
    bool all_in_range = true;
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t k = 0; k < size_; ++k) all_in_range &= in_range(source[i * size_ + k], k);
    }
    return all_in_range;
  });
}

bool ActionStore::store_valid(const ActionSlots& slots, const void* actions, std::int32_t dtype, const std::int32_t* env_ids,
                              std::int64_t count) const {
  if (store(slots, actions, dtype, env_ids, count)) [[likely]]
    return true;
  with_types(dtype, [&]<class Source, class Target>(Source, Target, auto) {
    for (std::int64_t i = 0; i < count; ++i) {
      auto* target = reinterpret_cast<Target*>(slots.of(env_ids != nullptr ? env_ids[i] : static_cast<std::int32_t>(i)));
      for (std::int64_t k = 0; k < size_; ++k) {
        target[k] = kind_ == EF_BOX ? static_cast<Target>(std::clamp(0.0, low_[k], high_[k])) : static_cast<Target>(start_);
      }
    }
    return true;
  });
  return false;
}

std::int64_t ActionStore::row_bytes(std::int32_t dtype) const { return size_of(dtype) * size_; }

}  // namespace envfleet::engine
