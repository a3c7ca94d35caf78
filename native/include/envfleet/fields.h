// fields(): the state of an env, declared once.
//
//   template <class Visitor> void fields(Visitor& visit) {
//     visit("x", x);
//     visit("board", board);
//   }
//
// From this declaration come get_state and set_state, get_attr and set_attr, and what a renderer in Python sees. A field
// is an arithmetic value, or a fixed array, std::array, std::vector or std::span of them. Values that follow from the
// config alone need not be declared.
//
// Thread safety: a visitor belongs to the call that receives it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "envfleet/abi.h"
#include "envfleet/spec.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

namespace detail {

template <class T>
struct FieldAccess {
  static_assert(std::is_arithmetic_v<T>, "a field is an arithmetic value or an array or std::vector of them");
  using Value = T;
  static constexpr bool is_scalar = true;
  static constexpr bool is_resizable = false;
  static Value* data(T& field) { return &field; }
  static std::int64_t size(const T&) { return 1; }
};

template <class T, std::size_t N>
struct FieldAccess<T[N]> {
  using Value = T;
  static constexpr bool is_scalar = false;
  static constexpr bool is_resizable = false;
  static Value* data(T (&field)[N]) { return field; }
  static std::int64_t size(const T (&)[N]) { return N; }
};

template <class T, std::size_t N>
struct FieldAccess<std::array<T, N>> {
  using Value = T;
  static constexpr bool is_scalar = false;
  static constexpr bool is_resizable = false;
  static Value* data(std::array<T, N>& field) { return field.data(); }
  static std::int64_t size(const std::array<T, N>&) { return N; }
};

template <class T>
struct FieldAccess<std::vector<T>> {
  static_assert(!std::is_same_v<T, bool>, "std::vector<bool> has no addressable elements: use std::vector<std::uint8_t>");
  using Value = T;
  static constexpr bool is_scalar = false;
  static constexpr bool is_resizable = true;
  static Value* data(std::vector<T>& field) { return field.data(); }
  static std::int64_t size(const std::vector<T>& field) { return static_cast<std::int64_t>(field.size()); }
};

// Memory that something else owns: a simulator's arrays.
template <class T>
struct FieldAccess<std::span<T>> {
  using Value = T;
  static constexpr bool is_scalar = false;
  static constexpr bool is_resizable = false;
  static Value* data(const std::span<T>& field) { return field.data(); }
  static std::int64_t size(const std::span<T>& field) { return static_cast<std::int64_t>(field.size()); }
};

}  // namespace detail

// Appends raw bytes to a state.
class StateWriter {
 public:
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void put_bytes(const void* data, std::size_t size) { bytes_.append(static_cast<const char*>(data), size); }

  // As a field visitor.
  template <class T>
  void operator()(const char*, T& field) {
    using Access = detail::FieldAccess<T>;
    const std::int64_t size = Access::size(field);
    put(size);
    put_bytes(Access::data(field), static_cast<std::size_t>(size) * sizeof(typename Access::Value));
  }

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Reads it back; throws when the bytes do not fit what is read.
class StateReader {
 public:
  StateReader(const void* data, std::size_t size) : rest_(static_cast<const char*>(data), size) {}

  template <class T>
  T get() {
    T value;
    get_bytes(&value, sizeof(T));
    return value;
  }
  void get_bytes(void* out, std::size_t size) {
    if (size > rest_.size()) throw std::invalid_argument("the state is shorter than this env's");
    if (size != 0) std::memcpy(out, rest_.data(), size);
    rest_.remove_prefix(size);
  }

  template <class T>
  void operator()(const char* name, T& field) {
    using Access = detail::FieldAccess<T>;
    const auto size = get<std::int64_t>();
    if constexpr (Access::is_resizable) {
      if (size < 0 || static_cast<std::size_t>(size) > rest_.size() / sizeof(typename Access::Value)) {
        throw std::invalid_argument(std::string("the state holds no valid field ") + name);
      }
      field.resize(static_cast<std::size_t>(size));
    } else if (size != Access::size(field)) {
      throw std::invalid_argument(std::string("the state holds another size of field ") + name);
    }
    const std::size_t num_bytes = static_cast<std::size_t>(size) * sizeof(typename Access::Value);
    if constexpr (std::is_same_v<typename Access::Value, bool>) {
      // Before a bool has the byte: one that is neither 0 nor 1 is undefined behaviour.
      if (std::any_of(rest_.begin(), rest_.begin() + std::min(num_bytes, rest_.size()),
                      [](char byte) { return (byte & ~1) != 0; })) {
        throw std::invalid_argument(std::string("the state holds no valid bool in field ") + name);
      }
    }
    get_bytes(Access::data(field), num_bytes);
  }

  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

// Passes each field to a C callback, which may read or write it in place.
class FieldViewer {
 public:
  FieldViewer(ef_field_visitor visit, void* context) : visit_(visit), context_(context) {}

  template <class T>
  void operator()(const char* name, T& field) {
    using Access = detail::FieldAccess<T>;
    const std::int64_t count = Access::is_scalar ? -1 : Access::size(field);
    visit_(context_, name, dtype_of<typename Access::Value>(), count, Access::data(field));
  }

 private:
  ef_field_visitor visit_;
  void* context_;
};

}  // namespace envfleet

#pragma GCC visibility pop
