// Which cores share a NUMA node, that is, a memory that is nearer to them than to the others.
#pragma once

#include <string>
#include <vector>

namespace envfleet::engine {

// The same cores, grouped by node, each group in its order; cores that the system assigns to no node come last. Workers
// with neighbouring rows, which share pages of memory, are pinned in this order. root: where Linux describes the nodes.
std::vector<int> cores_by_node(const std::vector<int>& cores, const std::string& root = "/sys/devices/system/node");

}  // namespace envfleet::engine
