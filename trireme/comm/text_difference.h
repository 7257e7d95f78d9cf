#pragma once
// Comparison of settings that have to be the same on all ranks of a group: each rank passes them as a text of
// lines.

#include <optional>
#include <string>

#include "trireme/comm/group.h"

namespace trireme::comm {

/// The texts of a group's first rank and of the first one after it that holds another.
struct TextDifference {
  int rank = 0;  ///< of the world, like `other_rank`
  int other_rank = 0;
  std::string of_rank;
  std::string of_other_rank;
  /// "rank 0 'LINE', rank 2 'LINE'": the first lines that differ; an empty one where a text has ended.
  std::string describe() const;
};

/// Collective, and the same on every rank; empty when all hold the same text. The texts themselves go round
/// only when their digests differ. Throws CommError.
std::optional<TextDifference> find_text_difference(Group& group, const std::string& mine);

}  // namespace trireme::comm
