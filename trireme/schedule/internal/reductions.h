#pragma once
// REDUCE_GRAD of a stage that is on several ranks lasts until all of them are there; the k-th of one rank
// belongs to the k-th of the others. For traversals of programs. One thread at a time.

#include <map>

#include "trireme/schedule/internal/holders.h"

namespace trireme::schedule {

class Reductions {
 public:
  explicit Reductions(const Program& program) : program_(program) {}

  /// `rank` has come to cell `position`, which may be a REDUCE_GRAD; called again for the same cell, nothing.
  void enter(std::size_t rank, std::size_t position, Cell cell) {
    if (cell.front().kind != ActionKind::kReduceGrad) return;
    auto& [last, count] = entered_[{cell.front().stage, static_cast<int>(rank)}];
    if (count > 0 && last == position) return;
    last = position;
    ++count;
  }

  /// A replica of the stage that has not come as far as `rank`; Holders::kNobody when it can continue.
  int missing(std::size_t rank, int stage) const {
    if (program_.replicas.empty()) return Holders::kNobody;
    for (const int replica : program_.replicas[static_cast<std::size_t>(stage)]) {
      if (count(replica, stage) < count(static_cast<int>(rank), stage)) return replica;
    }
    return Holders::kNobody;
  }

 private:
  int count(int rank, int stage) const {
    const auto found = entered_.find({stage, rank});
    return found == entered_.end() ? 0 : found->second.second;
  }

  const Program& program_;
  std::map<std::pair<int, int>, std::pair<std::size_t, int>> entered_;  ///< position of the last, how many
};

}  // namespace trireme::schedule
