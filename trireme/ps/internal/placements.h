#pragma once
// The functions of the table in placement.cpp.

#include "trireme/ps/placement.h"

namespace trireme::ps {

/// Highest random weight (Thaler and Ravishankar 1998), weighted by -weight / ln(hash) (Schindelhauer and
/// Schomaker, SPAA 2005). Loads are bounded (Mirrokni, Thorup and Zadimoghaddam, SODA 2018). Partitions keep
/// their servers. A partition that has lost a server takes the one with the highest hash among those with
/// room. A server with few partitions takes those with the highest hash for it from servers with more.
Placement place_by_bounded_rendezvous(std::span<const Candidate> servers, const PlacementOptions& options,
                                      const Placement& before);

/// Consistent hashing (Karger et al., STOC 1997): each server is at many points of a ring, a partition goes
/// to those that follow its own point, independent of its earlier servers. Only the number of points bounds
/// the load.
Placement place_on_hash_ring(std::span<const Candidate> servers, const PlacementOptions& options,
                             const Placement& before);

}  // namespace trireme::ps
