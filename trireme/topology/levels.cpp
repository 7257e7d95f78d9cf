#include "trireme/topology/levels.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "trireme/base/text.h"

namespace trireme::topology {
namespace {

/// The members of a part of the network, or its smaller parts.
struct Part {
  std::vector<int> members;
  std::map<std::string, Part> parts;  ///< ordered by name: the same on all ranks
};

/// Sizes of the levels from `depth` on, and the members in order. False: the parts of a level differ.
bool measure(const Part& part, std::size_t depth, std::vector<int>& sizes, std::vector<int>& members) {
  const bool is_lowest = part.parts.empty();
  const int size = static_cast<int>(is_lowest ? part.members.size() : part.parts.size());
  if (sizes.size() <= depth) sizes.push_back(size);
  if (sizes[depth] != size || (is_lowest && sizes.size() != depth + 1)) return false;
  members.insert(members.end(), part.members.begin(), part.members.end());
  return std::ranges::all_of(
      part.parts, [&](const auto& each) { return measure(each.second, depth + 1, sizes, members); });
}

}  // namespace

Levels one_level(int members) {
  Levels levels{.sizes = {members}, .members = std::vector<int>(static_cast<std::size_t>(members))};
  std::iota(levels.members.begin(), levels.members.end(), 0);
  return levels;
}

Levels levels_of(const std::vector<std::string>& hosts) {
  const Levels flat = one_level(static_cast<int>(hosts.size()));
  Part all;
  std::size_t depth = 0;
  for (std::size_t member = 0; member < hosts.size(); ++member) {
    const std::vector<std::string> words = split(hosts[member], '/');
    if (member > 0 && words.size() != depth) return flat;
    depth = words.size();
    Part* part = &all;
    for (const std::string& word : words) part = &part->parts[word];
    part->members.push_back(static_cast<int>(member));
  }
  Levels levels;
  if (!measure(all, 0, levels.sizes, levels.members)) return flat;
  std::erase(levels.sizes, 1);
  return levels.sizes.size() > 1 ? levels : flat;
}

}  // namespace trireme::topology
