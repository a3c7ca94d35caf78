// FleetHandle: owns a fleet behind the C ABI.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "envfleet/abi.h"

namespace envfleet::engine {

// What the engine throws for an env that cannot be described, built, saved or drawn.
class FleetError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
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

  const ef_env_type& type() const { return type_; }
  void* raw() const { return fleet_; }

 private:
  const ef_env_type& type_;
  void* fleet_ = nullptr;
};

}  // namespace envfleet::engine
