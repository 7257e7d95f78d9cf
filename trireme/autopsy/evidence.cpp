#include "trireme/autopsy/evidence.h"

#include <algorithm>

namespace trireme::autopsy {

std::vector<std::string> telling_lines(const std::vector<std::string>& lines) {
  constexpr std::size_t kMostLines = 6, kMostBytes = 2000;
  std::vector<std::string> kept;
  for (const std::string& line : lines) {
    const bool tells = &line == &lines.back() || line.find("error: ") != std::string::npos ||
                       line.find("terminate called") != std::string::npos ||
                       line.find("what():") != std::string::npos;
    if (tells) kept.push_back(line.substr(0, kMostBytes));
  }
  if (kept.size() > kMostLines) kept.erase(kept.begin(), kept.end() - kMostLines);
  return kept;
}

Evidence merged(std::vector<Evidence> parts) {
  if (parts.empty()) return {};
  Evidence all = std::move(parts.front());
  for (auto part = parts.begin() + 1; part != parts.end(); ++part) {
    all.unix_s = std::max(all.unix_s, part->unix_s);
    all.world_size = std::max(all.world_size, part->world_size);
    all.slowdown = std::max(all.slowdown, part->slowdown);
    if (all.told_to_stop == 0) {
      all.told_to_stop = part->told_to_stop;
      all.told_by = part->told_by;
    }
    all.hosts.insert(all.hosts.end(), part->hosts.begin(), part->hosts.end());
    all.ranks.insert(all.ranks.end(), part->ranks.begin(), part->ranks.end());
  }
  std::ranges::stable_sort(all.ranks, {}, &RankEvidence::rank);
  return all;
}

}  // namespace trireme::autopsy
