#include "trireme/comm/text_difference.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "trireme/base/text.h"

namespace trireme::comm {

std::optional<TextDifference> find_text_difference(Group& group, const std::string& mine) {
  const auto digests = group.all_gather_text(text(mine.size(), " ", std::hash<std::string>{}(mine)));
  if (std::ranges::adjacent_find(digests, std::ranges::not_equal_to{}) == digests.end()) return std::nullopt;
  const auto all = group.all_gather_text(mine);
  const auto other = std::ranges::find_if(all, [&](const std::string& one) { return one != all.front(); });
  if (other == all.end()) return std::nullopt;
  return TextDifference{.rank = group.world_ranks().front(),
                        .other_rank = group.world_ranks()[static_cast<std::size_t>(other - all.begin())],
                        .of_rank = all.front(),
                        .of_other_rank = *other};
}

std::string TextDifference::describe() const {
  const std::vector<std::string> lines = split(of_rank, '\n'), other_lines = split(of_other_rank, '\n');
  const auto [line, other_line] = std::ranges::mismatch(lines, other_lines);
  return text("rank ", rank, " '", line == lines.end() ? "" : *line, "', rank ", other_rank, " '",
              other_line == other_lines.end() ? "" : *other_line, "'");
}

}  // namespace trireme::comm
