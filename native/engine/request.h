// Request: what the engine is asked to do with envs.
#pragma once

namespace envfleet::engine {

enum class Request { step, reset, observe };

}  // namespace envfleet::engine
