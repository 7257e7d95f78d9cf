#pragma once
// The functions of the table in placement.cpp.

#include "trireme/ps/placement.h"

namespace trireme::ps {

/// Highest random weight (Thaler and Ravishankar 1998), weighted by -weight / ln(hash) (Schindelhauer and
/// Schomaker, SPAA 2005), with bounded loads (Mirrokni, Thorup and Zadimoghaddam, SODA 2018). Partitions
/// choose in the order of their numbers; one whose favourite is full takes the next.
Placement place_by_bounded_rendezvous(std::span<const Candidate> servers, const PlacementOptions& options);

/// Consistent hashing (Karger et al., STOC 1997): each server stands at many points of a ring, a partition
/// goes to those that follow its own point. Nothing bounds the load but the number of points.
Placement place_on_hash_ring(std::span<const Candidate> servers, const PlacementOptions& options);

}  // namespace trireme::ps
