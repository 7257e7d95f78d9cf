#pragma once
// Which processes have which ranks in the next world of an elastic job. Pure.

#include <optional>
#include <string>
#include <vector>

#include "trireme/wire/elastic_world.h"

namespace trireme::cli {

/// A process of the job that lives.
struct LivingMember {
  wire::ElasticMember member;
  std::vector<int> sizes = {};  ///< of worlds that its program can run in, rising; empty: any, or not known
};

struct RegroupRequest {
  wire::ElasticWorld before;                ///< that was lost
  std::vector<LivingMember> living;         ///< of its ranks, in any order
  std::vector<wire::ElasticMember> spares;  ///< that live, in the order in which they are used
  std::vector<int> sizes = {};              ///< of worlds that the program can run in; empty: not known
  int wanted_ranks = 1;                     ///< with which the job was started
  int min_ranks = 1;
};

/// The next world: as near to `wanted_ranks` as its program can run on. The ranks that live stay in their
/// order. Where the world keeps its size, each keeps its rank, and spares take the places of those that are
/// gone. Nothing where fewer than `min_ranks` are left, or the program can run on no such number.
std::optional<wire::ElasticWorld> regroup(const RegroupRequest& request);

}  // namespace trireme::cli
