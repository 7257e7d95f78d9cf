#include "trireme/plan/plan.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/plan/internal/parse_number.h"
#include "trireme/plan/internal/partitioning.h"

namespace trireme::plan {
namespace {

/// The whole model on every worker, level by level. The level below carries each level's reduction.
double data_parallel_s(const Profile& profile, const PlanOptions& options) {
  const Work model = profile.between(0, profile.last_cut());
  double time_s = model.compute_s;
  std::size_t carriers = 1;
  for (const Level& level : options.levels) {
    time_s = replicated_s(time_s, {.replicas = level.num_workers,
                                   .parameter_bytes = model.parameter_bytes,
                                   .bandwidth_bytes_per_s = level.bandwidth_bytes_per_s,
                                   .carriers = carriers});
    carriers = level.num_workers;
  }
  return time_s;
}

void check(const PlanOptions& options) {
  require(!options.levels.empty(), "a plan needs at least one level of workers, found none");
  std::size_t workers = 1;
  for (std::size_t i = 0; i < options.levels.size(); ++i) {
    const Level& level = options.levels[i];
    require(level.num_workers >= 1, "level ", i + 1, " has 0 workers; expected at least 1");
    require(level.num_workers <= kMaxWorkers / workers, "the levels have more than ", kMaxWorkers,
            " workers together; plan for fewer");
    require(level.bandwidth_bytes_per_s > 0, "level ", i + 1, " has a bandwidth of ",
            level.bandwidth_bytes_per_s, " bytes per second; expected more than 0");
    workers *= level.num_workers;
  }
}

const Partitioner& find_partitioner(const std::string& method) {
  for (const Partitioner& partitioner : partitioners()) {
    if (partitioner.name == method) return partitioner;
  }
  throw InvalidArgument(
      text("unknown partitioning method '", method, "'", suggest(method, partitioner_names())));
}

/// Parses a list; the error of a bad entry names it.
template <class Number>
std::vector<Number> parse_list(std::string_view list, const char* what, const char* expected) {
  std::vector<Number> numbers;
  for (const std::string& word : split(list, ',')) {
    const auto number = parse_number<Number>(trim(word));
    require(number.has_value(), what, ": found '", word, "' in '", list, "', expected ", expected,
            ", separated by commas");
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace

std::size_t num_workers(const PlanOptions& options) {
  std::size_t workers = 1;
  for (const Level& level : options.levels) workers *= level.num_workers;
  return workers;
}

Plan make_plan(const Profile& profile, const PlanOptions& options, const std::string& method) {
  const Partitioner& partitioner = find_partitioner(method);
  check(options);
  const bool replicates = partitioner.replicates && !options.straight;
  require(replicates || num_workers(options) <= profile.num_layers(), "one worker per stage makes ",
          num_workers(options), " stages, but the profile has ", profile.num_layers(),
          " layers; use fewer workers, or replicas (pipedream, not straight)");
  Plan plan{.method = method,
            .stages = partitioner.make(profile, options),
            .pipeline_time_s = 0,
            .transfer_time_s = 0,
            .data_parallel_time_s = data_parallel_s(profile, options)};
  for (const Stage& stage : plan.stages) {
    plan.pipeline_time_s = std::max(plan.pipeline_time_s, stage.time_s);
    plan.transfer_time_s = std::max(plan.transfer_time_s, stage.transfer_s);
  }
  return plan;
}

std::vector<Level> parse_levels(std::string_view workers, std::string_view bandwidths) {
  const auto counts = parse_list<std::size_t>(workers, "workers", "whole numbers from 1");
  const auto rates = parse_list<double>(bandwidths, "bandwidth", "bytes per second");
  require(counts.size() == rates.size(), "found ", counts.size(), " level(s) of workers ('", workers,
          "') and ", rates.size(), " bandwidth(s) ('", bandwidths,
          "'); expected one bandwidth per level, innermost first");
  std::vector<Level> levels;
  for (std::size_t i = 0; i < counts.size(); ++i)
    levels.push_back({.num_workers = counts[i], .bandwidth_bytes_per_s = rates[i]});
  return levels;
}

}  // namespace trireme::plan
