#pragma once
// Place of the members of a group in a network of several levels (site, rack, host), by the names of their
// hosts: "berlin/rack3/n7". Levels of which each has as many parts everywhere are used; others are not. Pure;
// thread-safe.

#include <string>
#include <vector>

namespace trireme::topology {

struct Levels {
  std::vector<int> sizes;    ///< from the outermost on: sites, racks of each site, hosts of each rack
  std::vector<int> members;  ///< by place, of which the innermost level runs fastest
};

/// All members on one level.
Levels one_level(int members);
/// One level where names have none, or parts of different sizes. Levels of one part are left out.
Levels levels_of(const std::vector<std::string>& hosts);

}  // namespace trireme::topology
