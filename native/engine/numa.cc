#include "engine/numa.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

namespace envfleet::engine {

namespace {

// A list such as "0-3,8" as the kernel writes it. What cannot be read is left out: the order of pinning is best effort.
std::vector<int> read_list(const std::string& path) {
  std::vector<int> numbers;
  std::ifstream file(path);
  std::string part;
  while (std::getline(file, part, ',')) {
    std::istringstream range(part);
    int first = -1, last = -1;
    char dash = 0;
    if (!(range >> first)) continue;
    last = range >> dash >> last && dash == '-' ? last : first;
    // A machine has a few thousand cores at most; anything else is not a list of them.
    for (int number = first; number <= std::min(last, first + 65'535); ++number) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

std::vector<int> cores_by_node(const std::vector<int>& cores, const std::string& root) {
  std::vector<int> grouped;
  std::set<int> rest(cores.begin(), cores.end());
  for (const int node : read_list(root + "/online")) {
    const std::vector<int> members = read_list(root + "/node" + std::to_string(node) + "/cpulist");
    std::copy_if(members.begin(), members.end(), std::back_inserter(grouped),
                 [&](int core) { return rest.erase(core) > 0; });
  }
  std::copy_if(cores.begin(), cores.end(), std::back_inserter(grouped), [&](int core) { return rest.erase(core) > 0; });
  return grouped;
}

}  // namespace envfleet::engine
