// The one header that an environment's author includes.
//
// An env is a plain struct:
//
//   struct Catch {
//     static envfleet::Params params();                        // optional
//     static void spec(const envfleet::Config&, envfleet::Spec&);
//     explicit Catch(const envfleet::Config&);                 // or a default constructor
//     void reset(envfleet::Rng&, envfleet::Out&);
//     void step(ACTION, envfleet::Out&);                       // or (ACTION, Rng&, Out&)
//
//     void observe(envfleet::Out&);                            // optional: writes the observation alone
//     template <class V> void fields(V&);                      // optional: see fields.h
//     void save(envfleet::StateWriter&); void load(envfleet::StateReader&);  // instead, for opaque state
//     void fields_changed();                                   // optional: after set_attr and set_state
//     void render(envfleet::Frame&);                           // optional
//     using Random = envfleet::RandomState;                    // optional: what reset() draws from; see random_state.h
//   };
//   ENVFLEET_ENV("Catch-v0", Catch)
//
// For envs whose step takes a few nanoseconds, beside step(), with the same result:
//
//     static constexpr int lanes = 8;
//     static bool step_lanes(Env* const* envs, const std::int32_t* actions, envfleet::LaneOut<lanes>&);
//
// It steps `lanes` envs at once (Discrete actions, no draws, no infos), or returns false,
// having done nothing, when one of them needs step(). Envs whose episode has ended may be among
// them; they are reset afterwards.
//
// ACTION is int for Discrete; const std::int32_t* for MultiDiscrete; const
// std::int8_t* for MultiBinary; const T* for Box<T>.
//
// Thread safety: different envs run on different threads at once, so an env shares no
// mutable global. One env is never run by two threads at a time.
//
// Visibility: everything in these headers is hidden in a library built with them. Two plug-ins
// in one process may define structs of the same name, and must not share what is made of them.
//
// Invariants: out arrays are zero when reset, step, step_lanes and observe begin, unless the env
// promises to write all of them (static constexpr bool writes_every_element = true). What an env
// throws breaks that env alone; what step_lanes throws, all the envs that it was given. An exception
// need not be a std::exception, but a destructor must not throw: C++ ends the process then.
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

// Registers an env under an id; several in one file are fine.
#define ENVFLEET_ENV(id, ...)                                                                              \
  namespace {                                                                                              \
  const bool ENVFLEET_JOIN(envfleet_registered_, __COUNTER__) =                                            \
      (::envfleet::detail::local_types().push_back(::envfleet::detail::make_type<__VA_ARGS__>(id)), true); \
  }

// The export is emitted by the header, unless the engine itself compiles the env in.
#ifndef ENVFLEET_BUILTIN
ENVFLEET_EXPORT inline __attribute__((used)) const ef_plugin* envfleet_plugin_v1() noexcept {
  return ::envfleet::detail::local_plugin();
}
#endif
