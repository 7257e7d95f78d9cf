#pragma once
// The search for the fastest way to train a model on a number of ranks: every combination of mesh, schedule,
// chunks, micro-batches, ZeRO stage, shard groups and activation checkpointing, each with its estimate
// (estimate/estimate.h). Plans that do not fit are tried with the optimizer's state in files. Pure.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/train/estimate/estimate.h"
#include "trireme/train/plan/made_schedules.h"
#include "trireme/train/planner/planned_keys.h"

namespace trireme::train {

/// Plans whose times differ by less count as equally fast: measurements cannot distinguish them.
inline constexpr double kAsFast = 0.01;

/// A plan with its estimate, without the timeline of its actions.
struct PlannedStep {
  RunConfig config;                      ///< with the plan's keys
  std::vector<PlannedSetting> settings;  ///< planned_settings() of it
  double step_s = 0;
  std::vector<EstimateOfRank> ranks;  ///< of one pipeline
  std::int64_t memory_bytes = 0;      ///< at the peak, of the rank that has most: memory_of_rank()
  int memory_rank = 0;                ///< that rank

  /// Of all ranks together.
  double samples_per_s() const { return static_cast<double>(config.train.global_batch) / step_s; }
  /// The rank that works longest.
  const EstimateOfRank& busiest() const;
};

/// Of a rank's process; on a device, of its tensors.
std::int64_t memory_of_rank(const ForecastOfRank& rank, const Measurements& measured);

struct PlanSearch {
  /// That fit, the fastest first; of those within 1 % of it the one with fewest keys.
  std::vector<PlannedStep> plans;
  std::vector<PlannedStep> too_large;  ///< by rising memory
  /// For each measured codec, the fastest of the first plans with it, if it is faster than all `plans`. It
  /// changes the gradients, so it is a proposal and none of `plans`. Its settings have parallel.compression,
  /// which is not a planned key.
  std::vector<PlannedStep> compressed;
  std::int64_t limit_bytes = 0;  ///< of a rank; 0: none
  std::int64_t estimated = 0;    ///< combinations
  std::int64_t bounded = 0;      ///< combinations that a bound has ruled out
  std::int64_t rejected = 0;     ///< combinations that cannot run
  std::int64_t work = 0;         ///< actions of step programs, with those that bounds looked at
  bool is_complete = true;       ///< false: the time was over, or the limit of work left plans out

  /// No other plan, of those that fit and those that do not, is both faster and smaller. By rising time.
  std::vector<const PlannedStep*> frontier() const;
  /// The fastest of `plans` with whole models on all ranks: plain data parallelism. Null: none fits,
  /// or the search has left them out.
  const PlannedStep* data_parallel() const;
};

struct PlanSearchOptions {
  std::int64_t limit_bytes = 0;  ///< of a rank; 0: no limit
  /// Plans that take so many times the fastest one are no alternative, and are not estimated.
  double alternatives = 3;
  /// Of the search, in actions of all step programs that it makes and simulates (internal/plan_work.h). Plans
  /// that would exceed it are left out, and so are plans that alone take an eighth of it. So the time is
  /// bounded, and the result does not depend on the machine; 0: no limit.
  std::int64_t max_work = 0;
  /// Called during the search; true ends it with the plans found so far. Null: never.
  std::function<bool()> is_over = nullptr;
};

/// Planned keys that `config` has not at their defaults stay as they are; the others are free. Plans that
/// resolve_plan() rejects are left out. Deterministic, unless `is_over` ends it. Throws InvalidArgument: a
/// configuration whose memory or time cannot be estimated (check_forecast()), or whose stages update at
/// different times; no plan runs, with the reason of the first. Cost: about a millisecond for each
/// combination that a bound does not rule out, and a tenth of a second where a pipeline has 64 ranks.
PlanSearch search_plans(const RunConfig& config, int world_size, const MeasuredForms& measured,
                        const PlanSearchOptions& options = {});

/// The estimate of the plan that `config` names. Throws InvalidArgument: a plan that cannot run, or that the
/// measurements do not cover.
PlannedStep plan_step(const RunConfig& config, int world_size, const MeasuredForms& measured);
/// The same, for many plans: searched schedules are made once.
PlannedStep plan_step(const RunConfig& config, int world_size, const MeasuredForms& measured,
                      MadeSchedules& schedules);

/// Why `other` is not the best plan, in words: "needs 3.1 GiB more on rank 2", "12 % slower: exchanges take
/// 31.2 ms instead of 4.0 ms".
std::string why_not(const PlannedStep& other, const PlannedStep& best, std::int64_t limit_bytes);

/// The planned keys in a few words: "2 replicas x 2 ranks of stages (1f1b, 8 micro-batches), zero 1".
std::string in_words(const RunConfig& config, int world_size);

}  // namespace trireme::train
