// How many cores this process may use, and pinning a thread to one of them.
#pragma once

namespace envfleet::engine {

// Cores of the affinity mask, further limited by the cgroup's CPU quota; at least 1.
int usable_cores();

// The core that the calling thread is on at this moment; -1 if the system does not tell.
int this_core();

// Pins the calling thread to core `index` of the affinity mask, modulo its size, in the order of cores_by_node(). Best
// effort.
void pin_this_thread(int index);

}  // namespace envfleet::engine
