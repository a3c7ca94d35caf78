// What is thrown on an env's side of the ABI, as an ef_error: an exception must not cross it.
#pragma once

#include <cstdio>
#include <exception>
#include <new>

#include "envfleet/abi.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

namespace detail {

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

}  // namespace detail

}  // namespace envfleet

#pragma GCC visibility pop
