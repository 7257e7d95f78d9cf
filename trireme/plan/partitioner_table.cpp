#include <algorithm>
#include <limits>

#include "trireme/plan/internal/partitioning.h"

namespace trireme::plan {
namespace {

/// The bandwidth after stage number `stage`, with one worker per stage and groups of each level filled in
/// order.
double bandwidth_behind(std::size_t stage, const PlanOptions& options) {
  std::size_t group = 1;
  for (const Level& level : options.levels) {
    group *= level.num_workers;
    if ((stage + 1) % group != 0) return level.bandwidth_bytes_per_s;
  }
  return options.levels.back().bandwidth_bytes_per_s;
}

double transfer_behind(const Profile& profile, const PlanOptions& options, std::size_t stage,
                       std::size_t cut) {
  return transfer_s(profile.output_bytes(cut), bandwidth_behind(stage, options));
}

/// One worker per stage, with the cuts that minimize the largest `cost`.
std::vector<Stage> cut_by(const Profile& profile, const PlanOptions& options, const CostOfPart& cost) {
  std::vector<Stage> stages;
  std::size_t from = 0;
  for (const std::size_t to : best_cuts(profile, num_workers(options), cost)) {
    const Work work = profile.between(from, to);
    stages.push_back({.first_state = from,
                      .last_state = to - 1,
                      .replicas = 1,
                      .work = work,
                      .time_s = work.compute_s,
                      .transfer_s = transfer_behind(profile, options, stages.size(), to)});
    from = to;
  }
  return stages;
}

std::vector<Stage> cut_uniformly(const Profile& profile, const PlanOptions& options) {
  return cut_by(profile, options, [&](std::size_t, std::size_t from, std::size_t to) {
    return static_cast<double>(profile.between(from, to).num_layers);
  });
}

std::vector<Stage> cut_by_parameters(const Profile& profile, const PlanOptions& options) {
  return cut_by(profile, options, [&](std::size_t, std::size_t from, std::size_t to) {
    return profile.between(from, to).parameter_bytes;
  });
}

std::vector<Stage> cut_by_time(const Profile& profile, const PlanOptions& options) {
  return cut_by(profile, options, [&](std::size_t stage, std::size_t from, std::size_t to) {
    return std::max(profile.between(from, to).compute_s, transfer_behind(profile, options, stage, to));
  });
}

std::vector<Stage> pipedream(const Profile& profile, const PlanOptions& options) {
  return cut_hierarchically(profile, options, Links::kFree);
}

std::vector<Stage> pipedream_with_links(const Profile& profile, const PlanOptions& options) {
  return cut_hierarchically(profile, options, Links::kCounted);
}

}  // namespace

std::vector<std::size_t> best_cuts(const Profile& profile, std::size_t num_stages, const CostOfPart& cost) {
  return min_max_cuts(
      profile.last_cut(), num_stages, [&](std::size_t stage, std::size_t from, std::size_t to) {
        return profile.is_before(from, to) ? cost(stage, from, to) : std::numeric_limits<double>::infinity();
      });
}

const std::vector<Partitioner>& partitioners() {
  static const std::vector<Partitioner> kTable = {
      {.name = "pipedream",
       .summary = "replicas where they help, least time of the slowest stage; links are free",
       .replicates = true,
       .make = pipedream},
      {.name = "pipedream-links",
       .summary = "the same, least time of the slowest stage or link",
       .replicates = true,
       .make = pipedream_with_links},
      {.name = "time",
       .summary = "one worker per stage, least time of the slowest stage or link",
       .replicates = false,
       .make = cut_by_time},
      {.name = "parameters",
       .summary = "one worker per stage, parameters spread evenly",
       .replicates = false,
       .make = cut_by_parameters},
      {.name = "uniform",
       .summary = "one worker per stage, layers spread evenly",
       .replicates = false,
       .make = cut_uniformly},
  };
  return kTable;
}

std::vector<std::string> partitioner_names() {
  std::vector<std::string> names;
  for (const Partitioner& partitioner : partitioners()) names.push_back(partitioner.name);
  return names;
}

}  // namespace trireme::plan
