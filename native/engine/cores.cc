#include "engine/cores.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/numa.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace envfleet::engine {

namespace {

#if defined(__linux__)

int cores_by_affinity() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return static_cast<int>(std::thread::hardware_concurrency());
  return CPU_COUNT(&allowed);
}

double read_quota_v2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  return std::stod(quota) / period;
}

double read_quota_v1(const std::string& folder) {
  double quota = -1, period = 0;
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
  if (!(quota_file >> quota) || !(period_file >> period) || quota <= 0 || period <= 0) return 0;
  return quota / period;
}

// The tightest quota on the way from this process's cgroup to the root; 0: none.
double cores_by_quota() {
  double tightest = 0;
  const auto consider = [&](double cores) {
    if (cores > 0 && (tightest == 0 || cores < tightest)) tightest = cores;
  };
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    const bool is_v2 = controllers.empty();
    if (!is_v2 && controllers.find("cpu") == std::string::npos) continue;
    for (;;) {
      consider(is_v2 ? read_quota_v2("/sys/fs/cgroup" + path) : read_quota_v1("/sys/fs/cgroup/cpu" + path));
      if (path.empty() || path == "/") break;
      path.erase(path.rfind('/'));
    }
  }
  return tightest;
}

#else

int cores_by_affinity() { return static_cast<int>(std::thread::hardware_concurrency()); }
double cores_by_quota() { return 0; }

#endif

}  // namespace

int usable_cores() {
  int cores = cores_by_affinity();
  const double quota = cores_by_quota();
  if (quota > 0) cores = std::min(cores, static_cast<int>(std::ceil(quota)));
  return std::max(cores, 1);
}

int this_core() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

void pin_this_thread([[maybe_unused]] int index) {
#if defined(__linux__)
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || CPU_COUNT(&allowed) == 0) return;
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cores_by_node(cores)[static_cast<std::size_t>(index) % cores.size()], &one);
  sched_setaffinity(0, sizeof(one), &one);
#endif
}

}  // namespace envfleet::engine
