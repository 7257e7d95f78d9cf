#pragma once
// A step program: for each rank of a pipeline the list of actions of one step, in order. The same value is
// generated, lowered to communication, validated, executed, simulated and drawn. Plain data-parallel training
// is the program with one stage. A Program is a value; functions here are pure and thread-safe.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/schedule/action.h"

namespace trireme::schedule {

/// Which weights a micro-batch sees where a stage steps while others are under way.
enum class WeightVersions {
  kNewest,     ///< the stage's newest; sound where it steps once, after everything else
  kStashed,    ///< its backward uses the weights that were newest at its forward (PipeDream's weight
               ///< stashing)
  kVertical,   ///< every stage uses the weights that were newest at the first stage (PipeDream's vertical
               ///< sync)
  kOneBehind,  ///< group t uses the weights after t - 1 updates, on every stage (PipeDream-2BW)
};

/// Maximum sizes of a program: more than any training has, and few enough for counters.
constexpr std::int64_t kMostRanks = 4096;
constexpr std::int64_t kMaxWork = 4'000'000;  ///< stages times micro-batches

/// Throws InvalidArgument, which begins with `who`: beyond these.
void check_size(std::string_view who, std::int64_t ranks, std::int64_t stages, std::int64_t microbatches);

struct Program {
  std::string name;  ///< "data-parallel", "1f1b"
  int num_stages = 1;
  int num_microbatches = 1;
  std::vector<std::vector<Action>> ranks;  ///< ranks[r]: actions of rank r of the pipeline, in order

  /// Ranks that hold each stage; each micro-batch of the stage runs on one of them. Empty: every stage is on
  /// one rank, the one that has its actions.
  std::vector<std::vector<int>> replicas = {};

  /// Backwards of a stage on one rank between two of its updates. 0: one update, at the end of the step.
  int update_every = 0;
  WeightVersions versions = WeightVersions::kNewest;
};

/// Without a pipeline: every micro-batch (at least 1) through all stages (at least 1) and back, one after
/// the other: 0F0 0B0 0F1 0B1 0REDUCE_GRAD 0STEP, or 0F0 1F0 1B0 1REDUCE_GRAD 0B0 0REDUCE_GRAD 0STEP 1STEP.
Program data_parallel(int num_microbatches, int num_stages = 1);

/// The order of computations `times` over, one run after the other on every rank; run k has micro-batches
/// k * m to k * m + m - 1 of m. Throws InvalidArgument: times below 1.
Program repeat(const Program& order, int times);

/// The same program without its idle slots.
Program without_idle(Program program);

/// True when the program has sends and receives.
bool has_transfers(const Program& program);

/// For each stage the ranks that its actions name, in rising order.
std::vector<std::vector<int>> ranks_of_stages(const Program& program);

/// One line per rank, cells separated by a comma; an idle slot is an empty cell.
std::string to_csv(const Program& program);

/// The inverse of to_csv; stages and micro-batches are counted. A line that starts with # is a remark. Throws
/// InvalidArgument with line and token.
Program parse_csv(std::string_view csv);

}  // namespace trireme::schedule
