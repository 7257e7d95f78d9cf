#pragma once
// What the partitioners are made of. All are pure.

#include <functional>
#include <vector>

#include "trireme/plan/plan.h"

namespace trireme::plan {

/// Cost of a stage, the `stage`th from 0, between two cuts; infinite when it may not be.
using StageCost = std::function<double(std::size_t stage, std::size_t from, std::size_t to)>;

/// The cuts behind each of `num_stages` stages, the last behind the whole model, with the least cost of the
/// costliest stage; among those the stages are even, as the sum of squares is kept low on the way. Dynamic
/// programming over the cuts: num_stages S^2 calls of `cost`. Empty when every choice has an infinite cost.
std::vector<std::size_t> best_cuts(const Profile& profile, std::size_t num_stages, const StageCost& cost);

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
