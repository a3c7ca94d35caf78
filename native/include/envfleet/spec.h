// Params, Config and Spec: what an env declares, and what it receives.
//
// An env declares its parameters once (Params), receives their values (Config), and describes its spaces (Spec). All of
// them are used only when envs are made, never while stepping, so they favor clarity over speed.
//
// Thread safety: a Spec or Config belongs to the call that receives it.
// Invariant: names and bounds that a Spec passes to the engine live as long as the Spec.
#pragma once

#include <cmath>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "envfleet/abi.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

template <class T>
constexpr ef_dtype dtype_of() {
  if constexpr (std::is_same_v<T, bool>) return EF_BOOL;
  if constexpr (std::is_same_v<T, std::uint8_t>) return EF_UINT8;
  if constexpr (std::is_same_v<T, std::int8_t>) return EF_INT8;
  if constexpr (std::is_same_v<T, std::uint16_t>) return EF_UINT16;
  if constexpr (std::is_same_v<T, std::int16_t>) return EF_INT16;
  if constexpr (std::is_same_v<T, std::uint32_t>) return EF_UINT32;
  if constexpr (std::is_same_v<T, std::int32_t>) return EF_INT32;
  if constexpr (std::is_same_v<T, std::uint64_t>) return EF_UINT64;
  if constexpr (std::is_same_v<T, std::int64_t>) return EF_INT64;
  if constexpr (std::is_same_v<T, float>) return EF_FLOAT32;
  if constexpr (std::is_same_v<T, double>) return EF_FLOAT64;
}

inline std::int64_t size_of(std::int32_t dtype) {
  constexpr std::int64_t sizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8};
  return sizes[dtype];
}

// The C++ type of the elements, for messages.
inline std::string type_name(std::int32_t dtype) {
  constexpr const char* names[] = {"bool",         "std::uint8_t",  "std::int8_t",  "std::uint16_t",
                                   "std::int16_t", "std::uint32_t", "std::int32_t", "std::uint64_t",
                                   "std::int64_t", "float",         "double"};
  return names[dtype];
}

inline constexpr double infinity = std::numeric_limits<double>::infinity();

// One array with its bounds: an observation, an action or an info column.
struct Space {
  ef_kind kind = EF_BOX;
  ef_dtype dtype = EF_FLOAT32;
  std::vector<std::int64_t> shape;
  std::vector<double> low, high;  // one value for all elements, or one per element
  std::int64_t start = 0, count = 0;
  std::vector<std::int64_t> nvec;
};

template <class T>
Space box(std::vector<std::int64_t> shape, double low = -infinity, double high = infinity) {
  return {EF_BOX, dtype_of<T>(), std::move(shape), {low}, {high}, 0, 0, {}};
}

// A one-dimensional box with bounds for each element.
template <class T>
Space box(std::vector<double> low, std::vector<double> high) {
  const auto size = static_cast<std::int64_t>(low.size());
  return {EF_BOX, dtype_of<T>(), {size}, std::move(low), std::move(high), 0, 0, {}};
}

// The same with the bounds in braces. Without it, {2}, {5} would be a shape and a low bound.
template <class T>
Space box(std::initializer_list<double> low, std::initializer_list<double> high) {
  return box<T>(std::vector<double>(low), std::vector<double>(high));
}

// A number without bounds, as in most info columns.
template <class T>
Space scalar() {
  return box<T>({});
}

inline Space discrete(std::int64_t count, std::int64_t start = 0) {
  return {EF_DISCRETE, EF_INT64, {}, {0}, {0}, start, count, {}};
}

inline Space multi_discrete(std::vector<std::int64_t> nvec) {
  const auto size = static_cast<std::int64_t>(nvec.size());
  return {EF_MULTI_DISCRETE, EF_INT64, {size}, {0}, {0}, 0, 0, std::move(nvec)};
}

inline Space multi_binary(std::int64_t count) { return {EF_MULTI_BINARY, EF_INT8, {count}, {0}, {1}, 0, 0, {}}; }

// The description of an env: its spaces, time limit and info columns.
class Spec {
 public:
  // The observation is a single array ...
  Spec& observation(Space space) { return add(EF_SINGLE, "obs", std::move(space)); }
  // ... or a Dict: call it once per key ...
  Spec& observation(std::string key, Space space) {
    for (const ef_array& other : obs_) {
      if (key == other.name) throw std::invalid_argument("spec() declared the observation \"" + key + "\" twice");
    }
    return add(EF_DICT, std::move(key), std::move(space));
  }
  // ... or a Tuple: call it once per member.
  Spec& observation_member(Space space) { return add(EF_TUPLE, "", std::move(space)); }

  Spec& action(Space space) {
    if (has_action_) throw std::invalid_argument("spec() declared two actions: declare one space for both");
    check_action_range(space);
    raw_.action = convert("action", std::move(space), 0);
    has_action_ = true;
    return *this;
  }

  // An info column. presence: which rows have a value.
  Spec& info(std::string key, Space space, int presence = EF_ON_STEP | EF_ON_RESET) {
    check_info_key(key);
    if (presence == 0 || (presence & ~(EF_ON_STEP | EF_ON_RESET)) != 0) {
      throw std::invalid_argument("spec() expected the presence of \"" + key +
                                  "\" as EF_ON_STEP, EF_ON_RESET or both, got " + std::to_string(presence));
    }
    info_.push_back(convert(std::move(key), std::move(space), presence));
    return *this;
  }

  // A number that reset(options={name: ...}) accepts; read it with out.option().
  Spec& reset_option(std::string name) {
    options_.push_back(names_.emplace_back(std::move(name)).c_str());
    return *this;
  }

  // 0: no limit.
  Spec& max_episode_steps(int steps) {
    if (steps < 0) throw std::invalid_argument("spec() expected max_episode_steps >= 0, got " + std::to_string(steps));
    raw_.max_episode_steps = steps;
    return *this;
  }
  Spec& reward_threshold(double threshold) {
    raw_.reward_threshold = threshold;
    return *this;
  }

  // For the engine: the C struct, valid as long as this Spec.
  const ef_spec* finish(bool has_state, bool has_render, bool has_lanes) {
    if (has_lanes && !info_.empty()) {
      throw std::invalid_argument("spec() of an env with step_lanes(), which writes no infos, declared the info \"" +
                                  std::string(info_[0].name) + "\": leave one of them out");
    }
    if (obs_.empty()) throw std::invalid_argument("spec() declared no observation");
    if (!has_action_) throw std::invalid_argument("spec() declared no action");
    raw_.num_obs = static_cast<std::int32_t>(obs_.size());
    raw_.obs = obs_.data();
    raw_.num_info = static_cast<std::int32_t>(info_.size());
    raw_.info = info_.data();
    raw_.num_reset_options = static_cast<std::int32_t>(options_.size());
    raw_.reset_options = options_.data();
    raw_.has_state = has_state ? 1 : 0;
    raw_.has_render = has_render ? 1 : 0;
    return &raw_;
  }

  Spec() {
    raw_ = ef_spec{};
    raw_.reward_threshold = std::numeric_limits<double>::quiet_NaN();
  }
  Spec(const Spec&) = delete;
  Spec& operator=(const Spec&) = delete;

 private:
  static constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

  // step() receives discrete actions as int32.
  static void check_action_range(const Space& space) {
    const bool starts_inside = space.start >= -kMaxInt32 - 1 && space.start <= kMaxInt32;
    if (space.kind == EF_DISCRETE && (!starts_inside || space.count > kMaxInt32 - space.start + 1)) {
      throw std::invalid_argument("spec() expected a Discrete action whose values fit int32, got " +
                                  std::to_string(space.count) + " values from " + std::to_string(space.start));
    }
    for (const std::int64_t count : space.nvec) {
      if (count > kMaxInt32) {
        throw std::invalid_argument("spec() expected a MultiDiscrete action whose values fit int32, got one of " +
                                    std::to_string(count) + " values");
      }
    }
  }

  static void check_discrete(const Space& space) {
    if (space.count <= 0) throw std::invalid_argument("spec() declared an empty Discrete");
    if (space.start > 0 && space.count - 1 > std::numeric_limits<std::int64_t>::max() - space.start) {
      throw std::invalid_argument("spec() expected a Discrete whose values fit int64, got " + std::to_string(space.count) +
                                  " values from " + std::to_string(space.start));
    }
  }

  void check_info_key(const std::string& key) const {
    for (const char* own : {"env_id", "elapsed_step", "final_obs", "final_info", "error"}) {
      if (key == own) throw std::invalid_argument("spec() declared the info \"" + key + "\", a key of the pool itself");
    }
    if (key.empty() || key[0] == '_') {
      throw std::invalid_argument("spec() expected an info key without an underscore in front, which marks masks, got \"" +
                                  key + "\"");
    }
    for (const ef_array& other : info_) {
      if (key == other.name) throw std::invalid_argument("spec() declared the info \"" + key + "\" twice");
    }
  }

  Spec& add(ef_structure structure, std::string name, Space space) {
    if (!obs_.empty() && (structure != raw_.structure || structure == EF_SINGLE)) {
      throw std::invalid_argument("spec() mixed a single, a Dict and a Tuple observation: declare one of them");
    }
    raw_.structure = structure;
    obs_.push_back(convert(std::move(name), std::move(space), 0));
    return *this;
  }

  ef_array convert(std::string name, Space given, int presence) {
    if (given.shape.size() > ENVFLEET_MAX_NDIM) throw std::invalid_argument("spec() declared more than 8 dimensions");
    if (given.low.size() != given.high.size())
      throw std::invalid_argument("spec() declared low and high of different sizes");
    const Space& space = spaces_.emplace_back(std::move(given));
    ef_array raw{};
    raw.name = names_.emplace_back(std::move(name)).c_str();
    raw.kind = space.kind;
    raw.dtype = space.dtype;
    raw.ndim = static_cast<std::int32_t>(space.shape.size());
    raw.presence = presence;
    constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;
    std::int64_t num_elements = 1;
    for (std::size_t i = 0; i < space.shape.size(); ++i) {
      if (space.shape[i] <= 0) throw std::invalid_argument("spec() declared a dimension that is not positive");
      if (space.shape[i] > kMaxElements / num_elements) {
        throw std::invalid_argument("spec() declared an array of more than 2**40 elements");
      }
      num_elements *= space.shape[i];
      raw.shape[i] = space.shape[i];
    }
    raw.num_bounds = static_cast<std::int64_t>(space.low.size());
    raw.low = space.low.data();
    raw.high = space.high.data();
    raw.start = space.start;
    raw.count = space.count;
    raw.nvec = space.nvec.data();
    if (space.kind == EF_DISCRETE) check_discrete(space);
    for (const std::int64_t count : space.nvec) {
      if (count <= 0) throw std::invalid_argument("spec() declared a MultiDiscrete with an element that has no values");
    }
    return raw;
  }

  ef_spec raw_;
  bool has_action_ = false;
  std::deque<Space> spaces_;  // deques: the raw views point into their elements
  std::deque<std::string> names_;
  std::vector<ef_array> obs_, info_;
  std::vector<const char*> options_;
};

namespace detail {
template <class>
inline constexpr bool kNever = false;  // for a static_assert in a template that must not be used

// What Param has no constructor for. Without the test for it, the compiler would list every constructor.
template <class T>
concept NoParamValue =
    !std::is_same_v<T, int> && !std::is_same_v<T, std::int64_t> && !std::is_same_v<T, double> && !std::is_same_v<T, float> &&
    !std::is_same_v<T, bool> && !std::is_convertible_v<T, const char*> && !std::is_convertible_v<T, const double*>;
}  // namespace detail

// One parameter: a name, a default that also determines its type, and a line of documentation.
struct Param : ef_param {
  Param(const char* name, int value, const char* doc = "") : ef_param{name, doc, {EF_INTEGER, value, 0, "", nullptr, 0}} {}
  Param(const char* name, std::int64_t value, const char* doc = "")
      : ef_param{name, doc, {EF_INTEGER, value, 0, "", nullptr, 0}} {}
  Param(const char* name, double value, const char* doc = "") : ef_param{name, doc, {EF_REAL, 0, value, "", nullptr, 0}} {}
  Param(const char* name, bool value, const char* doc = "")
      : ef_param{name, doc, {EF_FLAG, value ? 1 : 0, 0, "", nullptr, 0}} {}
  Param(const char* name, const char* value, const char* doc = "")
      : ef_param{name, doc, {EF_TEXT, 0, 0, value, nullptr, 0}} {}
  // values must be a static array.
  template <std::size_t N>
  Param(const char* name, const double (&values)[N], const char* doc = "")
      : ef_param{name, doc, {EF_REALS, 0, 0, "", values, static_cast<std::int64_t>(N)}} {}
  template <detail::NoParamValue T>
  Param(const char*, const T&, const char* = "") {
    static_assert(detail::kNever<T>,
                  "the default of a parameter is an int, std::int64_t, double, bool, const char* or static array of double; "
                  "write \"text\" instead of std::string(\"text\")");
  }
};

using Params = std::vector<Param>;

// The value of a parameter that is a list of numbers. Debug builds check its index.
#ifndef ENVFLEET_DEBUG
using Reals = std::vector<double>;
#else
class Reals : public std::vector<double> {
 public:
  Reals() = default;
  Reals(std::string name, const double* begin, const double* end)
      : std::vector<double>(begin, end), name_(std::move(name)) {}

  double& operator[](std::size_t index) { return data()[checked(index)]; }
  const double& operator[](std::size_t index) const { return data()[checked(index)]; }

 private:
  std::size_t checked(std::size_t index) const {
    if (index < size()) return index;
    throw std::out_of_range("used index " + std::to_string(static_cast<std::int64_t>(index)) + " of parameter " + name_ +
                            ", whose size is " + std::to_string(size()));
  }

  std::string name_;
};
#endif

// The values of one env's parameters, by name.
class Config {
 public:
  Config(const ef_param* params, std::int32_t num_params, const ef_value* values)
      : params_(params), num_params_(num_params), values_(values) {}

  std::int64_t integer(const char* name) const { return find(name, EF_INTEGER).integer; }
  double real(const char* name) const { return find(name, EF_REAL).real; }
  bool flag(const char* name) const { return find(name, EF_FLAG).integer != 0; }
  std::string text(const char* name) const { return find(name, EF_TEXT).text; }
  Reals reals(const char* name) const {
    const ef_value& value = find(name, EF_REALS);
#ifndef ENVFLEET_DEBUG
    return {value.reals, value.reals + value.num_reals};
#else
    return Reals(name, value.reals, value.reals + value.num_reals);
#endif
  }
  template <class T = void>
  std::string string(const char*) const {
    static_assert(detail::kNever<T>, "Config has no string(): text() returns a parameter whose default is a const char*");
    return {};
  }

 private:
  static const char* reader(std::int32_t type) {
    switch (type) {
      case EF_INTEGER:
        return "integer()";
      case EF_REAL:
        return "real()";
      case EF_FLAG:
        return "flag()";
      case EF_TEXT:
        return "text()";
      default:
        return "reals()";
    }
  }

  const ef_value& find(const char* name, ef_value_type type) const {
    for (std::int32_t i = 0; i < num_params_; ++i) {
      if (std::string(params_[i].name) != name) continue;
      if (values_[i].type != type)
        throw std::invalid_argument(std::string("parameter ") + name + " was read with " + reader(type) +
                                    ", but its default in params() is read with " + reader(values_[i].type));
      return values_[i];
    }
    throw std::invalid_argument(std::string("parameter ") + name + " was not declared in params()");
  }

  const ef_param* params_;
  std::int32_t num_params_;
  const ef_value* values_;
};

}  // namespace envfleet

#pragma GCC visibility pop
