#pragma once
// comm.network = "auto": UCX between hosts where each of them has an RDMA adapter with a link and UCX is
// measured as faster than TCP, else TCP. One rank of each host measures both when the world is made, rank 0
// decides from that, and all ranks take its word. Nothing that UCX does here ends a run that TCP can do.

#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/internal/backend_table.h"
#include "trireme/comm/internal/rendezvous.h"
#include "trireme/topology/all_reduce_cost.h"

namespace trireme::comm {

struct NetworkChoice {
  std::string network;   ///< "tcp" or "ucx"
  std::string reason;    ///< in words
  bool is_news = false;  ///< adapters were there, and were tried
};

/// Why this host cannot take UCX by itself: no object, no adapter with a link; empty: it can. Adapters are
/// those of the kernel, or of the folder TRIREME_INFINIBAND.
std::string why_not_ucx();

/// The choice from the arrivals of all ranks without a measurement; none: it needs one.
std::optional<NetworkChoice> choose_unmeasured(const std::vector<Arrival>& arrivals);

/// By the time of a message over each: UCX where one of 4 MiB takes a tenth less, and a small one at most a
/// tenth more.
NetworkChoice choose_measured(const topology::MessageCost& tcp, const topology::MessageCost& ucx);

/// For chosen_network().
void keep_network(c10d::Store& store, const NetworkChoice& choice);

/// Of the ranks of `world`, a rank of each host measures. Collective over the world; the same on all ranks.
/// Throws CommError where rank 0 does not answer by the deadline.
NetworkChoice choose_network(const BackendRequest& world, const std::vector<Arrival>& arrivals);

}  // namespace trireme::comm
