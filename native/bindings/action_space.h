// ActionSpace: the action space of Python envs, in the words that ActionStore understands.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "envfleet/abi.h"

namespace envfleet::bindings {

// Made from the dict of executors/rows/layout.py. Owns what it points to.
struct ActionSpace {
  explicit ActionSpace(nanobind::dict given) {
    array.kind = nanobind::cast<std::int32_t>(given["kind"]);
    array.dtype = nanobind::cast<std::int32_t>(given["dtype"]);
    const auto shape = nanobind::cast<std::vector<std::int64_t>>(given["shape"]);
    array.ndim = static_cast<std::int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), array.shape);
    low = nanobind::cast<std::vector<double>>(given["low"]);
    high = nanobind::cast<std::vector<double>>(given["high"]);
    nvec = nanobind::cast<std::vector<std::int64_t>>(given["nvec"]);
    array.num_bounds = static_cast<std::int64_t>(low.size());
    array.low = low.data();
    array.high = high.data();
    array.nvec = nvec.data();
    array.start = nanobind::cast<std::int64_t>(given["start"]);
    array.count = nanobind::cast<std::int64_t>(given["count"]);
  }
  ef_array array{};
  std::vector<double> low, high;
  std::vector<std::int64_t> nvec;
};

}  // namespace envfleet::bindings
