// FleetHandle: owns a fleet, the envs of one pool, behind the C ABI.
//
// Thread safety: as in abi.h.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "envfleet/abi.h"

namespace envfleet::engine {

// What the engine asks of envs.
enum class Request { step, reset, observe };

// Thrown for an env that cannot be described, built, saved or rendered.
class FleetError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Runs the body of a callback that is called through the ABI. An exception must not cross the ABI, so it is kept until
// the call has returned.
class Callback {
 public:
  template <class Body>
  void run(Body&& body) noexcept {
    if (thrown_ != nullptr) return;
    try {
      body();
    } catch (...) {
      thrown_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (thrown_ != nullptr) std::rethrow_exception(thrown_);
  }

 private:
  std::exception_ptr thrown_;
};

inline std::shared_ptr<const ef_spec> describe(const ef_env_type& type, const ef_value* config) {
  ef_error error{};
  const ef_spec* spec = type.describe(config, &error);
  if (spec == nullptr) throw FleetError(error.message);
  return {spec, type.release_spec};
}

class FleetHandle {
 public:
  FleetHandle(const ef_env_type& type, const ef_fleet_options& options) : type_(type) {
    ef_error error{};
    fleet_ = type.create(&options, &error);
    if (fleet_ == nullptr) throw FleetError(error.message);
  }
  ~FleetHandle() { type_.destroy(fleet_); }
  FleetHandle(const FleetHandle&) = delete;
  FleetHandle& operator=(const FleetHandle&) = delete;

  // --- one env, between batches; an exception of the env becomes a FleetError ---

  std::string get_state(std::int32_t env_id) const {
    struct Sink : Callback {
      std::string state;
    } sink;
    const auto take = [](void* context, const void* data, std::int64_t size) noexcept {
      auto& sink = *static_cast<Sink*>(context);
      sink.run([&] { sink.state.assign(static_cast<const char*>(data), static_cast<std::size_t>(size)); });
    };
    check([&](ef_error* error) { return type_.get_state(fleet_, env_id, take, &sink, error); });
    sink.rethrow();
    return std::move(sink.state);
  }

  // draw(height, width, rgb)
  template <class Draw>
  void render(std::int32_t env_id, Draw&& draw) const {
    struct Sink : Callback {
      Draw& draw;
      explicit Sink(Draw& given) : draw(given) {}
    } sink(draw);
    const auto take = [](void* context, std::int32_t height, std::int32_t width, const std::uint8_t* rgb) noexcept {
      auto& sink = *static_cast<Sink*>(context);
      sink.run([&] { sink.draw(height, width, rgb); });
    };
    check([&](ef_error* error) { return type_.render(fleet_, env_id, take, &sink, error); });
    sink.rethrow();
  }

  // visit(name, dtype, count, data), as ef_field_visitor. If it throws, no further field is visited.
  template <class Visit>
  void visit_fields(std::int32_t env_id, Visit&& visit) const {
    struct Visitor : Callback {
      Visit& visit;
      explicit Visitor(Visit& given) : visit(given) {}
    } visitor(visit);
    const auto see = [](void* context, const char* name, std::int32_t dtype, std::int64_t count, void* data) noexcept {
      auto& visitor = *static_cast<Visitor*>(context);
      visitor.run([&] { visitor.visit(name, dtype, count, data); });
    };
    check([&](ef_error* error) { return type_.visit_fields(fleet_, env_id, see, &visitor, error); });
    visitor.rethrow();
  }

  template <class Call>
  static void check(Call&& call) {
    ef_error error{};
    if (call(&error) != 0) throw FleetError(error.message);
  }

  const ef_env_type& type() const { return type_; }
  void* raw() const { return fleet_; }

 private:
  const ef_env_type& type_;
  void* fleet_ = nullptr;
};

}  // namespace envfleet::engine
