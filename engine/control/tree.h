// How the hosts of a process set are linked for negotiation: a binomial tree, so that a message
// passes at most log2(hosts) links. Pure; hosts by index.
#pragma once

#include <algorithm>
#include <vector>

namespace hvd {

// -1 for host 0, the root.
constexpr int tree_parent(int host) { return host == 0 ? -1 : host & (host - 1); }

inline std::vector<int> tree_children(int host, int hosts) {
  std::vector<int> children;
  for (int bit = 1; host + bit < hosts && (host & bit) == 0; bit *= 2)
    children.push_back(host + bit);
  return children;
}

// The host and all hosts below it, rising.
inline std::vector<int> tree_below(int host, int hosts) {
  std::vector<int> below{host};
  for (const int child : tree_children(host, hosts)) {
    const std::vector<int> further = tree_below(child, hosts);
    below.insert(below.end(), further.begin(), further.end());
  }
  std::ranges::sort(below);
  return below;
}

}  // namespace hvd
