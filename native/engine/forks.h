// Counts forks, so that what has threads or processes knows that they stayed with the parent.
#pragma once

#include <cstdint>

namespace envfleet::engine {

// How many forks lie between the first call and this process. Thread safety: any thread.
std::int64_t fork_generation();

}  // namespace envfleet::engine
