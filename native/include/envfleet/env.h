// envfleet's C++ SDK: the one header that the author of an environment includes.
//
// An env is a plain struct that is registered under an id:
//
//   #include "envfleet/env.h"
//
//   struct Catch {
//     static void spec(const envfleet::Config& config, envfleet::Spec& spec);  // spaces, infos, time limit
//     explicit Catch(const envfleet::Config& config);                          // or a default constructor
//     void reset(envfleet::Rng& rng, envfleet::Out& out);                      // starts an episode
//     void step(ACTION action, envfleet::Out& out);                            // or step(ACTION, Rng&, Out&)
//   };
//   ENVFLEET_ENV("Catch-v0", Catch)
//
// ACTION follows from the action space: int for Discrete, const std::int32_t* for MultiDiscrete, const std::int8_t* for
// MultiBinary, const T* for Box<T>. docs/writing_a_cpp_env.md has a complete example.
//
// Optional members:
//
//   static envfleet::Params params();              parameters with defaults, keyword arguments of make()
//   void observe(envfleet::Out&);                  writes the observation alone; otherwise the engine keeps a copy
//   template <class V> void fields(V& visit);      the state, for get_state, set_state, get_attr and set_attr
//   void save(StateWriter&); void load(StateReader&);  instead of fields(), for opaque state
//   void fields_changed();                         called after set_attr and set_state
//   void render(envfleet::Frame&);                 an RGB picture
//   using Random = envfleet::RandomState;          the generator that reset() draws from, instead of Rng
//   static constexpr bool writes_every_element = true;  promises to write the whole observation, which saves clearing it
//   static constexpr int lanes = 64;               together with
//   static bool step_lanes(Env* const* envs, const std::int32_t* actions, envfleet::LaneOut<lanes>& out);
//
// step_lanes() is for envs whose step takes a few nanoseconds. It steps `lanes` envs at once with the same result as
// step() (Discrete actions, no draws, no infos), or returns false, having changed nothing, if one of them needs step().
// Envs whose episode has ended may be among them; they are reset afterwards. Many lanes divide the cost of a call by more
// envs, and give the processor independent operations to overlap.
//
// It may be a template with the number of lanes as a parameter:
//
//   template <int kLanes> requires(kLanes % 8 == 0)
//   static bool step_lanes(Env* const* envs, const std::int32_t* actions, envfleet::LaneOut<kLanes>& out);
//
// Then envs that do not fill a group of `lanes`, and those of a group that returned false, are stepped in groups of half as
// many, a quarter, and so on, as far as it can be called. What remains is stepped one by one.
//
// An env whose step reads and writes nothing but an array of numbers can have it kept as columns, one per element, over
// all envs. step_lanes() then works on whole vectors, in place:
//
//   double (&lane_state() noexcept)[4] { return state_; }
//   std::uint32_t lane_kind() const noexcept;      optional: step_lanes() is called for envs of one kind
//   static bool step_lanes(const envfleet::LaneState<double, 4>& state, const std::int32_t* actions,
//                          envfleet::LaneOut<lanes>& out);   state[k][lane] is element k; state.kind is their kind
//
// The other members use state_ as usual: the engine copies it from the columns before each call, and back afterwards.
//
// Reading order. What an author uses:
//
//   spec.h          Params, Config and Spec: what an env declares and receives
//   out.h           Out and Frame: where it writes its row and its picture
//   rng.h           Rng: numpy's PCG64; random_state.h is numpy's legacy generator, for ports
//   fields.h        fields(): the state, declared once
//   lanes.h         LaneState and LaneOut: several envs at once
//   numpy_math.h    numpy's functions, bit for bit
//
// How the struct becomes a table of C functions that the engine calls:
//
//   env_concepts.h  which optional members a struct has
//   env_config.h    its parameters and spec;  action_type.h: its actions
//   rows.h          the rows of a batch;  guarded_rows.h: those that one call may access, checked in debug builds
//   step_rule.h     what a step does, given the autoreset mode and the env's phase
//   env_slots.h     the envs of a pool, one by one;  lane_columns.h: their lane_state();  stepping.h: the inner loop
//   exceptions.h    no exception crosses the ABI
//   env_type.h      the table;  abi.h: its layout, plain C
//
// Thread safety: different envs run on different threads at once, so envs must not share mutable globals. One env is
// never run by two threads at a time.
//
// Invariants: the arrays of `out` are zero when reset, step, step_lanes and observe begin, unless the env declares
// writes_every_element. An exception breaks the env that threw it; one from step_lanes() breaks all the envs of the call. It
// need not be a std::exception. A destructor must not throw: C++ ends the process then.
//
// Visibility: everything in these headers is hidden in a library that is built with them. Two plug-ins in one process may
// define structs of the same name, and must not share the functions that are instantiated for them.
#pragma once

#include "envfleet/abi.h"
#include "envfleet/env_type.h"
#include "envfleet/fields.h"
#include "envfleet/lanes.h"
#include "envfleet/numpy_math.h"
#include "envfleet/out.h"
#include "envfleet/random_state.h"
#include "envfleet/rng.h"
#include "envfleet/spec.h"

#if defined(_WIN32)
#define ENVFLEET_EXPORT extern "C" __declspec(dllexport)
#else
#define ENVFLEET_EXPORT extern "C" __attribute__((visibility("default")))
#endif

#define ENVFLEET_JOIN_(a, b) a##b
#define ENVFLEET_JOIN(a, b) ENVFLEET_JOIN_(a, b)

// Registers an env under an id. A file may register several.
#define ENVFLEET_ENV(id, ...)                                                                              \
  namespace {                                                                                              \
  const bool ENVFLEET_JOIN(envfleet_registered_, __COUNTER__) =                                            \
      (::envfleet::detail::local_types().push_back(::envfleet::detail::make_type<__VA_ARGS__>(id)), true); \
  }

// The plug-in's only export, unless the env is compiled into the engine.
#ifndef ENVFLEET_BUILTIN
ENVFLEET_EXPORT inline __attribute__((used)) const ef_plugin* envfleet_plugin_v1() noexcept {
  return ::envfleet::detail::local_plugin();
}
#endif
