// numpy's distributions, as the engine lends them to envs.
#pragma once

#include "envfleet/abi.h"

namespace envfleet::engine {

const ef_host* numpy_host();

}  // namespace envfleet::engine
