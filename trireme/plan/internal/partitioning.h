#pragma once
// Common functions of the partitioners. All are pure.

#include <vector>

#include "trireme/base/min_max_cuts.h"
#include "trireme/plan/plan.h"

namespace trireme::plan {

/// min_max_cuts() over the cuts of a profile, between which a stage can be.
std::vector<std::size_t> best_cuts(const Profile& profile, std::size_t num_stages, const CostOfPart& cost);

/// Time of `bytes` forward and as many backward over a link.
double transfer_s(double bytes, double bandwidth_bytes_per_s);

/// Time per mini-batch of `replicas` workers that take turns, each `compute_s`, and reduce their gradients.
struct Replication {
  std::size_t replicas = 1;
  double parameter_bytes = 0;
  double bandwidth_bytes_per_s = 0;
  /// Workers of the level below that carry the reduction together.
  std::size_t carriers = 1;
};
double replicated_s(double compute_s, const Replication& replication);

enum class Links {
  kFree,     ///< as in the published optimizer
  kCounted,  ///< as in the paper: a link is as slow as a stage may be
};

/// PipeDream's optimizer: the stages whose slowest, link or stage, is fastest.
std::vector<Stage> cut_hierarchically(const Profile& profile, const PlanOptions& options, Links links);

}  // namespace trireme::plan
