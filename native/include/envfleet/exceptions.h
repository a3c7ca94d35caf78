// Exceptions of an env become an ef_error: no exception crosses the ABI.
//
// Every function of an env type's table is made by set_entry(). The function types of abi.h are noexcept, so assigning
// anything else to a table does not compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <tuple>
#include <type_traits>

#include "envfleet/abi.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

namespace detail {

// For a catch (...) block: calls report(text) with the text of the current exception.
template <class Report>
void report_thrown(Report&& report) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    report("out of memory");
  } catch (const std::exception& thrown) {
    const char* text = thrown.what();
    report(text != nullptr && text[0] != '\0' ? text : "threw an exception without a text");
  } catch (...) {
    report("threw something that is not a std::exception");
  }
}

// Copies a text, or as much of it as fits. A text that is cut off ends with "..." after a complete UTF-8 character.
inline void write_error(ef_error* error, const char* what) noexcept {
  constexpr std::size_t kRoom = sizeof(error->message) - 1;
  const std::size_t length = std::strlen(what);
  if (length <= kRoom) {
    std::memcpy(error->message, what, length + 1);
    return;
  }
  std::size_t cut = kRoom - 3;
  // At most three continuation bytes: text in another encoding may have nothing else.
  for (int i = 0; i < 3 && (static_cast<unsigned char>(what[cut]) & 0xC0) == 0x80; ++i) --cut;
  std::memcpy(error->message, what, cut);
  std::memcpy(error->message + cut, "...", 4);
}

// One function of a table. A body whose last parameter is an ef_error* may throw: the function then returns null or 1,
// otherwise what the body returned, or 0.
template <class Body, class Result, class... Args>
struct Entry {
  static Result call(Args... args) noexcept {
    if constexpr (std::is_nothrow_invocable_v<Body, Args...>) {
      return Body{}(args...);
    } else {
      ef_error* const error = std::get<sizeof...(Args) - 1>(std::tie(args...));
      try {
        if constexpr (std::is_pointer_v<Result>) {
          return Body{}(args...);
        } else {
          static_assert(std::is_same_v<Result, std::int32_t>);
          Body{}(args...);
          return 0;
        }
      } catch (...) {
        report_thrown([&](const char* what) { write_error(error, what); });
      }
      if constexpr (std::is_pointer_v<Result>) {
        return nullptr;
      } else {
        return 1;
      }
    }
  }
};

// Sets one function of a table to a lambda without captures.
template <class Result, class... Args, class Body>
void set_entry(Result (*&entry)(Args...) noexcept, Body) {
  entry = &Entry<Body, Result, Args...>::call;
}

// Why a plug-in and an engine cannot work together, or empty if they can.
inline std::string abi_mismatch(std::uint32_t plugin_version, std::uint64_t plugin_layout, std::uint32_t engine_version,
                                std::uint64_t engine_layout) {
  const char* remedy = "; compile it again with the headers of the envfleet that loads it (envfleet.get_include())";
  if (plugin_version != engine_version) {
    return "it was built for ABI version " + std::to_string(plugin_version) + " of envfleet, this engine has version " +
           std::to_string(engine_version) + remedy;
  }
  if (plugin_layout == engine_layout) return "";
  return "it was built for ABI version " + std::to_string(plugin_version) +
         " of envfleet, as this engine, but with structs of other sizes" + remedy;
}

}  // namespace detail

}  // namespace envfleet

#pragma GCC visibility pop
