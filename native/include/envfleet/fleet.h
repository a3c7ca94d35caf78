// Fleet<Env>: num_envs envs of one type; env_type.h makes the C functions of it that the engine calls.
//
// Here the env's own step is inlined into the loop over a range of envs, and here is
// what a step after an episode's end does (the table of envfleet/autoreset.py).
//
// Thread safety: as in abi.h; a slot is touched by one thread at a time.
// Invariant: every row of a range is complete when the range function returns, also
// the row of an env that threw: it is zero, and on_fault was called for it.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "envfleet/abi.h"
#include "envfleet/env_concepts.h"
#include "envfleet/fields.h"
#include "envfleet/lanes.h"
#include "envfleet/out.h"
#include "envfleet/rng.h"
#include "envfleet/spec.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

namespace detail {

// The dtype in which the engine hands actions of a space to an env.
inline ef_dtype canonical_action_dtype(const ef_array& action) {
  if (action.kind == EF_DISCRETE || action.kind == EF_MULTI_DISCRETE) return EF_INT32;
  return static_cast<ef_dtype>(action.dtype);
}

inline std::int64_t action_row_bytes(const ef_array& action) {
  std::int64_t bytes = size_of(canonical_action_dtype(action));
  for (std::int32_t axis = 0; axis < action.ndim; ++axis) bytes *= action.shape[axis];
  return bytes;
}

inline void write_error(ef_error* error, const char* what) {
  std::snprintf(error->message, sizeof(error->message), "%s", what);
}

// Runs a body and turns what it throws into an ef_error. True: it did not throw.
template <class Body>
bool guarded(ef_error* error, Body&& body) {
  try {
    body();
    return true;
  } catch (const std::bad_alloc&) {
    write_error(error, "out of memory");
  } catch (const std::exception& thrown) {
    write_error(error, thrown.what());
  } catch (...) {
    write_error(error, "threw something that is not a std::exception");
  }
  return false;
}

// A deep copy of ef_values, so that an env can be rebuilt long after make().
class OwnedValues {
 public:
  OwnedValues(const ef_value* values, std::int32_t count) : values_(values, values + count), texts_(count), reals_(count) {
    for (std::int32_t i = 0; i < count; ++i) {
      if (values_[i].type == EF_TEXT) {
        texts_[i] = std::make_unique<std::string>(values_[i].text);
        values_[i].text = texts_[i]->c_str();
      } else if (values_[i].type == EF_REALS) {
        reals_[i] = std::make_unique<std::vector<double>>(values_[i].reals, values_[i].reals + values_[i].num_reals);
        values_[i].reals = reals_[i]->data();
      }
    }
  }
  const ef_value* data() const { return values_.data(); }

 private:
  std::vector<ef_value> values_;
  std::vector<std::unique_ptr<std::string>> texts_;
  std::vector<std::unique_ptr<std::vector<double>>> reals_;
};

template <class Env>
const Params& params_of() {
  static const Params& params = *new Params([] {
    if constexpr (HasParams<Env>) return Params(Env::params());
    return Params{};
  }());  // never destroyed, as the types below
  return params;
}

template <class Env>
Config config_of(const ef_value* values) {
  const Params& params = params_of<Env>();
  return Config(params.data(), static_cast<std::int32_t>(params.size()), values);
}

template <class Env>
const ef_spec* finish_spec(Spec& spec, const ef_value* values) {
  Env::spec(config_of<Env>(values), spec);
  return spec.finish(HasFields<Env> || HasSaveLoad<Env>, HasRender<Env>);
}

template <class Env>
class Fleet {
 public:
  explicit Fleet(const ef_fleet_options& options)
      : num_envs_(options.num_envs),
        autoreset_(options.autoreset),
        step_limit_(options.max_episode_steps > 0 ? options.max_episode_steps : std::numeric_limits<std::int32_t>::max()),
        phases_(options.phases),
        host_(options.host),
        slots_(options.num_envs) {
    const auto num_params = static_cast<std::int32_t>(params_of<Env>().size());
    for (std::int32_t i = 0; i < options.num_configs; ++i) configs_.emplace_back(options.configs[i], num_params);
    Spec spec;
    const ef_spec* raw = finish_spec<Env>(spec, configs_[0].data());
    check_action_type(raw->action);
    obs_columns_ = columns_of(raw->obs, raw->num_obs);
    info_columns_ = columns_of(raw->info, raw->num_info);
    action_bytes_ = action_row_bytes(raw->action);
    if constexpr (!HasObserve<Env>) {
      for (const Column& column : obs_columns_) last_obs_.emplace_back(column.row_bytes * num_envs_);
    }
    for (std::int32_t env_id = 0; env_id < num_envs_; ++env_id) {
      slots_[env_id].rng.set_host(host_);
      emplace(slots_[env_id], env_id);
    }
  }

  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  void seed(std::int32_t env_id, const std::uint32_t words[4]) { slots_[env_id].rng.seed(words); }

  // A constructor that throws leaves the slot empty and the env broken; the next rebuild tries again.
  void rebuild(std::int32_t env_id) {
    phases_[env_id] = EF_BROKEN;
    Slot& slot = slots_[env_id];
    slot.env.reset();
    emplace(slot, env_id);
    slot.elapsed_step = 0;
    phases_[env_id] = EF_UNSTARTED;
  }

  void reset_range(const ef_rows& rows, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int32_t env_id = env_of(rows, row);
      guard_row(rows, row, env_id, EF_IN_RESET, [&] {
        start_episode(rows, row, env_id);
        rows.reward[row] = 0.0;
        rows.terminated[row] = 0;
        rows.truncated[row] = 0;
      });
    }
  }

  void step_range(const ef_rows& rows, std::int64_t begin, std::int64_t end) {
    std::int64_t row = begin;
    if constexpr (HasLanes<Env>) {
      for (; end - row >= Env::lanes; row += Env::lanes) {
        if (!step_lanes(rows, row)) step_one_by_one(rows, row, row + Env::lanes);
      }
    }
    step_one_by_one(rows, row, end);
  }

  void step_one_by_one(const ef_rows& rows, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int32_t env_id = env_of(rows, row);
      // In this mode the call after an end starts the next episode and ignores the action.
      if (autoreset_ == EF_NEXT_STEP && phases_[env_id] == EF_ENDED) {
        reset_range(rows, row, row + 1);
        continue;
      }
      guard_row(rows, row, env_id, EF_IN_STEP, [&] { step_row(rows, row, env_id); });
    }
  }

  void observe_range(const ef_rows& rows, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int32_t env_id = env_of(rows, row);
      if constexpr (HasObserve<Env>) {
        guard_row(rows, row, env_id, EF_IN_OBSERVE, [&] {
          clear(obs_columns_, rows.obs, row);
          Out out(&rows, &obs_columns_, &info_columns_, row);
          built(env_id).observe(out);
        });
      } else {
        for (std::size_t k = 0; k < obs_columns_.size(); ++k) {
          const std::int64_t bytes = obs_columns_[k].row_bytes;
          std::memcpy(at(rows.obs[k], bytes, row), last_obs_[k].data() + bytes * env_id, bytes);
        }
      }
    }
  }

  void get_state(std::int32_t env_id, StateWriter& writer) {
    if constexpr (HasFields<Env> || HasSaveLoad<Env>) {
      Slot& slot = slots_[env_id];
      writer.put(slot.rng.save());
      writer.put(slot.elapsed_step);
      writer.put(phases_[env_id]);
      for (std::size_t k = 0; k < last_obs_.size(); ++k) {
        writer.put_bytes(last_obs_[k].data() + obs_columns_[k].row_bytes * env_id, obs_columns_[k].row_bytes);
      }
      if constexpr (HasSaveLoad<Env>) {
        built(env_id).save(writer);
      } else {
        built(env_id).fields(writer);
      }
    } else {
      throw std::logic_error("this env declares neither fields() nor save() and load()");
    }
  }

  void set_state(std::int32_t env_id, StateReader& reader) {
    if constexpr (HasFields<Env> || HasSaveLoad<Env>) {
      Slot& slot = slots_[env_id];
      slot.rng.load(reader.get<Rng::State>());
      slot.elapsed_step = reader.get<std::int32_t>();
      const auto phase = reader.get<std::uint8_t>();
      if (phase > EF_BROKEN) throw std::invalid_argument("the state holds no valid phase");
      phases_[env_id] = phase;
      for (std::size_t k = 0; k < last_obs_.size(); ++k) {
        reader.get_bytes(last_obs_[k].data() + obs_columns_[k].row_bytes * env_id, obs_columns_[k].row_bytes);
      }
      if constexpr (HasSaveLoad<Env>) {
        built(env_id).load(reader);
      } else {
        built(env_id).fields(reader);
      }
      if (!reader.rest().empty()) throw std::invalid_argument("the state is longer than this env's");
      if constexpr (HasFieldsChanged<Env>) built(env_id).fields_changed();
    } else {
      throw std::logic_error("this env declares neither fields() nor save() and load()");
    }
  }

  void render(std::int32_t env_id, Frame& frame) {
    if constexpr (HasRender<Env>) {
      built(env_id).render(frame);
    } else {
      throw std::logic_error("this env declares no render()");
    }
  }

  void visit_fields(std::int32_t env_id, ef_field_visitor visit, void* context) {
    if constexpr (HasFields<Env>) {
      if (!slots_[env_id].env) return;
      FieldViewer viewer(visit, context);
      slots_[env_id].env->fields(viewer);
      // The visitor may have written one.
      if constexpr (HasFieldsChanged<Env>) slots_[env_id].env->fields_changed();
    }
  }

 private:
  struct Slot {
    Slot() = default;
    // Never moved after the fleet is built; std::vector's constructor asks for it all the same.
    Slot(Slot&&) { std::terminate(); }
    std::int32_t elapsed_step = 0;  // first: in one cache line with the env's first members
    std::optional<Env> env;         // empty only after a rebuild that threw
    Rng rng;
  };

  static void check_action_type(const ef_array& action) {
    using Action = ActionOf<Env>;
    bool fits = false;
    if constexpr (std::is_pointer_v<Action>) {
      fits = action.kind != EF_DISCRETE &&
             canonical_action_dtype(action) == dtype_of<std::remove_const_t<std::remove_pointer_t<Action>>>();
    } else {
      fits = action.kind == EF_DISCRETE;
    }
    if (!fits)
      throw std::invalid_argument("step() takes another type of action than spec() declares; see the table in env.h");
  }

  void emplace(Slot& slot, std::int32_t env_id) {
    if constexpr (std::constructible_from<Env, const Config&>) {
      slot.env.emplace(config_of<Env>(config_values(env_id)));
    } else {
      slot.env.emplace();
    }
  }

  Env& built(std::int32_t env_id) {
    if (!slots_[env_id].env) throw std::logic_error("this env could not be rebuilt; reset it first");
    return *slots_[env_id].env;
  }

  const ef_value* config_values(std::int32_t env_id) const { return configs_[configs_.size() == 1 ? 0 : env_id].data(); }

  static std::int32_t env_of(const ef_rows& rows, std::int64_t row) {
    return rows.env_ids != nullptr ? rows.env_ids[row] : static_cast<std::int32_t>(row);
  }
  static char* at(void* base, std::int64_t row_bytes, std::int64_t row) {
    return static_cast<char*>(base) + row_bytes * row;
  }

  static void clear(const std::vector<Column>& columns, void* const* base, std::int64_t row) {
    for (std::size_t k = 0; k < columns.size(); ++k)
      std::memset(at(base[k], columns[k].row_bytes, row), 0, columns[k].row_bytes);
  }
  static void copy_row(const std::vector<Column>& columns, void* const* to, void* const* from, std::int64_t row) {
    for (std::size_t k = 0; k < columns.size(); ++k) {
      std::memcpy(at(to[k], columns[k].row_bytes, row), at(from[k], columns[k].row_bytes, row), columns[k].row_bytes);
    }
  }

  // Batch buffers are recycled: without this an element that the env skips would hold an old batch's value.
  void clear_outputs(const ef_rows& rows, std::int64_t row) {
    if constexpr (!WritesEveryElement<Env>) clear(obs_columns_, rows.obs, row);
    if (!info_columns_.empty()) clear(info_columns_, rows.info, row);
  }

  void remember_obs(const ef_rows& rows, std::int64_t row, std::int32_t env_id) {
    for (std::size_t k = 0; k < last_obs_.size(); ++k) {
      const std::int64_t bytes = obs_columns_[k].row_bytes;
      std::memcpy(last_obs_[k].data() + bytes * env_id, at(rows.obs[k], bytes, row), bytes);
    }
  }

  void start_episode(const ef_rows& rows, std::int64_t row, std::int32_t env_id) {
    Slot& slot = slots_[env_id];
    clear_outputs(rows, row);
    Out out(&rows, &obs_columns_, &info_columns_, row);
    slot.env->reset(slot.rng, out);
    slot.elapsed_step = 0;
    phases_[env_id] = EF_RUNNING;
    rows.elapsed_step[row] = 0;
    if constexpr (!HasObserve<Env>) remember_obs(rows, row, env_id);
  }

  void step_row(const ef_rows& rows, std::int64_t row, std::int32_t env_id) {
    Slot& slot = slots_[env_id];
    clear_outputs(rows, row);
    Out out(&rows, &obs_columns_, &info_columns_, row);
    act(slot, rows, env_id, out);
    finish_row(rows, row, env_id, out.reward, out.terminated, out.truncated);
  }

  void finish_row(const ef_rows& rows, std::int64_t row, std::int32_t env_id, double reward, bool terminated,
                  bool truncated) {
    const std::int32_t elapsed_step = ++slots_[env_id].elapsed_step;
    truncated |= elapsed_step >= step_limit_;
    rows.reward[row] = reward;
    rows.terminated[row] = terminated ? 1 : 0;
    rows.truncated[row] = truncated ? 1 : 0;
    rows.elapsed_step[row] = elapsed_step;
    if (terminated || truncated) [[unlikely]] {
      end_episode(rows, row, env_id);
    } else if constexpr (!HasObserve<Env>) {
      remember_obs(rows, row, env_id);
    }
  }

  // The rows from first_row on, as many as there are lanes. False: nothing was done.
  bool step_lanes(const ef_rows& rows, std::int64_t first_row)
    requires HasLanes<Env>
  {
    constexpr int kLanes = Env::lanes;
    std::int32_t ids[kLanes];
    std::int32_t actions[kLanes];
    Env* envs[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      ids[lane] = env_of(rows, first_row + lane);
      envs[lane] = &*slots_[ids[lane]].env;
      actions[lane] = static_cast<const std::int32_t*>(rows.actions)[ids[lane]];
    }
    LaneOut<kLanes> out(Out(&rows, &obs_columns_, &info_columns_, first_row));
    if (!Env::step_lanes(envs, actions, out)) return false;
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::int64_t row = first_row + lane;
      // Stepped in vain: leaving a lane out costs more than starting its episode over it.
      if (autoreset_ == EF_NEXT_STEP && phases_[ids[lane]] == EF_ENDED) [[unlikely]] {
        reset_range(rows, row, row + 1);
      } else {
        finish_row(rows, row, ids[lane], out.reward[lane], out.terminated[lane] != 0, false);
      }
    }
    return true;
  }

  void end_episode(const ef_rows& rows, std::int64_t row, std::int32_t env_id) {
    phases_[env_id] = EF_ENDED;
    if (autoreset_ != EF_SAME_STEP) {
      remember_obs(rows, row, env_id);
      return;
    }
    copy_row(obs_columns_, rows.final_obs, rows.obs, row);
    copy_row(info_columns_, rows.final_info, rows.info, row);
    rows.final_elapsed_step[row] = slots_[env_id].elapsed_step;
    start_episode(rows, row, env_id);
  }

  void act(Slot& slot, const ef_rows& rows, std::int32_t env_id, Out& out) {
    using Action = ActionOf<Env>;
    Action action;
    if constexpr (std::is_pointer_v<Action>) {
      action = reinterpret_cast<Action>(static_cast<const char*>(rows.actions) + action_bytes_ * env_id);
    } else {
      action = static_cast<const std::int32_t*>(rows.actions)[env_id];
    }
    if constexpr (StepsWithRng<Env, Action>) {
      slot.env->step(action, slot.rng, out);
    } else {
      slot.env->step(action, out);
    }
  }

  template <class Body>
  void guard_row(const ef_rows& rows, std::int64_t row, std::int32_t env_id, ef_method method, Body&& body) {
    try {
      body();
    } catch (const std::exception& thrown) {
      fail_row(rows, row, env_id, method, thrown.what());
    } catch (...) {
      fail_row(rows, row, env_id, method, "threw something that is not a std::exception");
    }
  }

  void fail_row(const ef_rows& rows, std::int64_t row, std::int32_t env_id, ef_method method, const char* what) {
    phases_[env_id] = EF_BROKEN;
    clear(obs_columns_, rows.obs, row);
    if (method != EF_IN_OBSERVE) {
      clear(info_columns_, rows.info, row);
      rows.reward[row] = 0.0;
      rows.terminated[row] = 0;
      rows.truncated[row] = 0;
      rows.elapsed_step[row] = method == EF_IN_RESET ? 0 : slots_[env_id].elapsed_step;
    }
    rows.on_fault(rows.fault_context, row, env_id, method, what);
  }

  const std::int32_t num_envs_;
  const std::int32_t autoreset_;
  const std::int32_t step_limit_;
  std::uint8_t* const phases_;
  const ef_host* const host_;
  std::vector<OwnedValues> configs_;
  std::vector<Column> obs_columns_, info_columns_;
  std::int64_t action_bytes_ = 0;
  std::vector<std::vector<char>> last_obs_;  // empty when the env can observe()
  std::vector<Slot> slots_;
};

}  // namespace detail

}  // namespace envfleet

#pragma GCC visibility pop
