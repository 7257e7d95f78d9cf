#pragma once
// The open Joins of a rank. A rank without a batch waits in its Join's next() and joins only the reductions
// of the Join's wrappers: other reductions between the same ranks would be taken for theirs. The list is
// written by the thread that makes wrappers and Joins, while no backward runs.

#include <memory>
#include <vector>

#include "trireme/comm/group.h"

namespace trireme::parallel {

struct JoinUnderWay {
  const void* join = nullptr;
  std::vector<int> world_ranks;
};
using JoinsUnderWay = std::vector<JoinUnderWay>;

/// Of the calling thread, which is a rank.
std::shared_ptr<JoinsUnderWay> joins_of_this_thread();

/// For wrappers, and for reductions outside a Join.
inline constexpr const char* kOneJoin =
    "make one Join over all wrappers, Join({{first, follow_first}, {second, follow_second}})";
inline constexpr const char* kNoJoin = "give all ranks the same number of batches, and use no Join";

/// Throws InvalidArgument where a Join is under way over two or more of the group's ranks.
void reject_beside_join(const JoinsUnderWay& joins, const comm::Group& group, const char* what,
                        const char* advice = kOneJoin);

}  // namespace trireme::parallel
