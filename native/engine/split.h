// How a number of items is split into contiguous parts: envs among workers, blocks among threads.
//
// Part p holds the items from first_of_part(p) up to, but excluding, first_of_part(p + 1). Sizes differ by at most one.
#pragma once

#include <cstdint>

namespace envfleet::engine {

constexpr std::int64_t first_of_part(std::int64_t num_items, std::int64_t num_parts, std::int64_t part) {
  return num_items * part / num_parts;
}

// The part that holds an item: the last part whose first item is not after it.
constexpr std::int64_t part_of(std::int64_t num_items, std::int64_t num_parts, std::int64_t item) {
  return ((item + 1) * num_parts - 1) / num_items;
}

}  // namespace envfleet::engine
