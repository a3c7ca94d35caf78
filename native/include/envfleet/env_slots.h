// EnvSlots<Env>: the envs of a fleet, and what is done with one of them between batches: seeding it, rebuilding it after a
// fault, saving, loading, rendering.
//
// Envs, generators and numbers of steps are in arrays of their own: a step touches the env and its number of steps, and a
// generator between them would be loaded into the cache as well, as neighbours are.
//
// Thread safety: as in abi.h; a slot is used by one thread at a time.
// Invariants: a slot is never moved, and empty only after a rebuild that threw. The numbers that an env declares as
// lane_state() are in columns_, and in its struct only while an Access to it exists.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <optional>
#include <stdexcept>
#include <vector>

#include "envfleet/abi.h"
#include "envfleet/action_type.h"
#include "envfleet/env_concepts.h"
#include "envfleet/env_config.h"
#include "envfleet/fields.h"
#include "envfleet/lane_columns.h"
#include "envfleet/numpy_math.h"
#include "envfleet/out.h"
#include "envfleet/rows.h"
#include "envfleet/spec.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

namespace detail {

template <class Env>
class EnvSlots {
 public:
  EnvSlots(const EnvSlots&) = delete;
  EnvSlots& operator=(const EnvSlots&) = delete;

  void seed(std::int32_t env_id, const std::uint32_t words[4]) { rngs_[env_id].seed(words); }

  // A constructor that throws leaves the slot empty and the env broken; the next rebuild tries again.
  void rebuild(std::int32_t env_id) {
    phases_[env_id] = EF_BROKEN;
    envs_[env_id].env.reset();
    emplace(env_id);
    elapsed_steps_[env_id] = 0;
    phases_[env_id] = EF_UNSTARTED;
  }

  void get_state(std::int32_t env_id, StateWriter& writer) {
    if constexpr (HasFields<Env> || HasSaveLoad<Env>) {
      writer.put(rngs_[env_id].save());
      writer.put(elapsed_steps_[env_id]);
      writer.put(phases_[env_id]);
      for (std::size_t k = 0; k < last_obs_.size(); ++k) {
        writer.put_bytes(last_obs_[k].data() + obs_columns_[k].row_bytes * env_id, obs_columns_[k].row_bytes);
      }
      if constexpr (HasSaveLoad<Env>) {
        built(env_id)->save(writer);
      } else {
        built(env_id)->fields(writer);
      }
    } else {
      throw std::logic_error("this env declares neither fields() nor save() and load()");
    }
  }

  // If this throws, the env is left broken: part of it has the new state.
  void set_state(std::int32_t env_id, StateReader& reader) {
    if constexpr (HasFields<Env> || HasSaveLoad<Env>) {
      phases_[env_id] = EF_BROKEN;
      rngs_[env_id].load(reader.get<typename RandomOf<Env>::State>());
      const auto elapsed_step = reader.get<std::int32_t>();
      // The next step counts on from here.
      if (elapsed_step < 0 || elapsed_step == std::numeric_limits<std::int32_t>::max()) {
        throw std::invalid_argument("the state holds no valid number of steps");
      }
      elapsed_steps_[env_id] = elapsed_step;
      const auto phase = reader.get<std::uint8_t>();
      if (phase > EF_BROKEN) throw std::invalid_argument("the state holds no valid phase");
      for (std::size_t k = 0; k < last_obs_.size(); ++k) {
        reader.get_bytes(last_obs_[k].data() + obs_columns_[k].row_bytes * env_id, obs_columns_[k].row_bytes);
      }
      if constexpr (HasSaveLoad<Env>) {
        built(env_id)->load(reader);
      } else {
        built(env_id)->fields(reader);
      }
      if (!reader.rest().empty()) throw std::invalid_argument("the state is longer than this env's");
      fields_changed(env_id);
      phases_[env_id] = phase;
    } else {
      throw std::logic_error("this env declares neither fields() nor save() and load()");
    }
  }

  void render(std::int32_t env_id, Frame& frame) {
    if constexpr (HasRender<Env>) {
      built(env_id)->render(frame);
    } else {
      throw std::logic_error("this env declares no render()");
    }
  }

  void visit_fields(std::int32_t env_id, ef_field_visitor visit, void* context) {
    if constexpr (HasFields<Env>) {
      FieldViewer viewer(visit, context);
      built(env_id)->fields(viewer);
    }
  }

  void fields_changed(std::int32_t env_id) {
    if constexpr (HasFieldsChanged<Env>) built(env_id)->fields_changed();
  }

 protected:
  struct NoColumns {
    explicit NoColumns(std::int32_t) {}
  };
  template <class T>
  struct ColumnsOf {
    using type = NoColumns;
  };
  template <HasLaneState T>
  struct ColumnsOf<T> {
    using type = LaneColumns<T>;
  };
  using Columns = typename ColumnsOf<Env>::type;

  // With columns, only a reset uses the struct: from one cache line, if it fits.
  struct alignas(HasLaneState<Env> ? 64 : alignof(std::optional<Env>)) Slot {
    Slot() = default;
    // Never moved once the fleet is built, but std::vector's constructor requires it.
    Slot(Slot&&) noexcept { std::terminate(); }
    std::optional<Env> env;  // empty only after a rebuild that threw
  };

  // An env outside of step_lanes(). Its struct holds its whole state as long as this exists.
  class Access {
   public:
    Access(EnvSlots& slots, std::int32_t env_id) : env_(*slots.envs_[env_id].env), slots_(slots), env_id_(env_id) {
      if constexpr (HasLaneState<Env>) slots_.columns_.load(env_id_, env_);
    }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;
    ~Access() {
      if constexpr (HasLaneState<Env>) slots_.columns_.store(env_id_, env_);
    }
    Env* operator->() const { return &env_; }

   private:
    Env& env_;
    EnvSlots& slots_;
    const std::int32_t env_id_;
  };

  explicit EnvSlots(const ef_fleet_options& options)
      : num_envs_(options.num_envs),
        phases_(options.phases),
        envs_(options.num_envs),
        columns_(options.num_envs),
        rngs_(options.num_envs),
        elapsed_steps_(options.num_envs, 0) {
    engine_host.store(options.host, std::memory_order_relaxed);
    const auto num_params = static_cast<std::int32_t>(params_of<Env>().size());
    for (std::int32_t i = 0; i < options.num_configs; ++i) configs_.emplace_back(options.configs[i], num_params);
    Spec spec;
    const ef_spec* raw = finish_spec<Env>(spec, configs_[0].data());
    check_action_type<Env>(raw->action);
    obs_columns_ = columns_of(raw->obs, raw->num_obs);
    info_columns_ = columns_of(raw->info, raw->num_info);
    action_bytes_ = action_row_bytes(raw->action);
    if constexpr (!HasObserve<Env>) {
      for (const Column& column : obs_columns_) last_obs_.emplace_back(column.row_bytes * num_envs_);
    }
    for (std::int32_t env_id = 0; env_id < num_envs_; ++env_id) {
      rngs_[env_id].set_host(options.host);
      emplace(env_id);
    }
  }
  ~EnvSlots() = default;

  Access built(std::int32_t env_id) {
    if (!envs_[env_id].env) throw std::logic_error("this env could not be rebuilt; reset it first");
    return Access(*this, env_id);
  }

  // For `count` consecutive envs in consecutive rows.
  void remember_obs(const ef_rows& rows, std::int64_t row, std::int32_t env_id, int count = 1) {
    for (std::size_t k = 0; k < last_obs_.size(); ++k) {
      const std::int64_t bytes = obs_columns_[k].row_bytes;
      std::memcpy(last_obs_[k].data() + bytes * env_id, row_at(rows.obs[k], bytes, row), bytes * count);
    }
  }

  const std::int32_t num_envs_;
  std::uint8_t* const phases_;
  std::vector<OwnedValues> configs_;
  std::vector<Column> obs_columns_, info_columns_;
  std::int64_t action_bytes_ = 0;
  std::vector<std::vector<char>> last_obs_;  // empty if the env has observe()
  std::vector<Slot> envs_;
  [[no_unique_address]] Columns columns_;
  std::vector<RandomOf<Env>> rngs_;
  std::vector<std::int32_t> elapsed_steps_;

 private:
  void emplace(std::int32_t env_id) {
    if constexpr (std::constructible_from<Env, const Config&>) {
      envs_[env_id].env.emplace(config_of<Env>(config_values(env_id)));
    } else {
      envs_[env_id].env.emplace();
    }
    if constexpr (HasLaneState<Env>) columns_.store(env_id, *envs_[env_id].env);
  }

  const ef_value* config_values(std::int32_t env_id) const { return configs_[configs_.size() == 1 ? 0 : env_id].data(); }
};

}  // namespace detail

}  // namespace envfleet

#pragma GCC visibility pop
