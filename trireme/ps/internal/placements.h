#pragma once
// The functions of the table in placement.cpp.

#include "trireme/ps/placement.h"

namespace trireme::ps {

/// Highest random weight (Thaler and Ravishankar 1998), weighted by -weight / ln(hash) (Schindelhauer and
/// Schomaker, SPAA 2005), with bounded loads (Mirrokni, Thorup and Zadimoghaddam, SODA 2018). Partitions keep
/// what they have; who has lost something takes its favourite among those with room, and a server that has
/// little takes, from those with more, the partitions that like it best.
Placement place_by_bounded_rendezvous(std::span<const Candidate> servers, const PlacementOptions& options,
                                      const Placement& before);

/// Consistent hashing (Karger et al., STOC 1997): each server stands at many points of a ring, a partition
/// goes to those that follow its own point, whatever it had. Nothing bounds the load but the number of
/// points.
Placement place_on_hash_ring(std::span<const Candidate> servers, const PlacementOptions& options,
                             const Placement& before);

}  // namespace trireme::ps
