#include "trireme/parallel/data/internal/unreached.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::parallel {

const char* const kUnreachedAdvice =
    ". If that is meant, set unused_parameters to kFind (they vary) or kStatic (always the same ones), in a "
    "configuration parallel.unused_parameters to \"find\" or \"static\"";
const char* const kUnreachedLater =
    ". They had a gradient in the first step, and kStatic needs the same ones in every step: use kFind";

std::string names_by_rank(comm::Group& group, const std::vector<std::string>& mine) {
  constexpr std::size_t kMaxNames = 10;
  std::vector<std::string> named;
  for (const std::string& name : mine) {
    if (named.size() < kMaxNames) named.push_back("'" + name + "'");
  }
  std::string names = join(named);
  if (mine.size() > kMaxNames) names += text(" and ", mine.size() - kMaxNames, " more");
  const auto all = group.all_gather_text(names);
  std::string where;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    where += text(where.empty() ? "" : "; ", "rank ", group.world_ranks()[rank], ": ", all[rank]);
  }
  return where;
}

void reject_unreached(const std::string& where, const char* advice) {
  throw InvalidArgument(text("backward did not reach these parameters on ", where, advice));
}

}  // namespace trireme::parallel
