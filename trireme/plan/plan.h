#pragma once
// A plan: which layers of a model form the stages of a pipeline, and how many workers replicate each. Made
// by a partitioner, one of the rows of partitioner_table.cpp; docs/planner.md has the equations. The model
// of cost is that of PipeDream (Narayanan et al., SOSP 2019, section 3.1): mini-batches flow without a flush,
// so a step takes as long as the slowest stage, and transfers run concurrently with compute. Values and pure
// functions; thread-safe.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/plan/profile.h"

namespace trireme::plan {

/// Workers that share a kind of link: the GPUs of a host, or the hosts of a rack.
struct Level {
  std::size_t num_workers = 1;       ///< workers of the level below that one group of this level has
  double bandwidth_bytes_per_s = 0;  ///< between two of them; infinite where transfers cost nothing
};

struct PlanOptions {
  std::vector<Level> levels;  ///< innermost first
  bool straight = false;      ///< one worker per stage, no replicas
};

struct Stage {
  std::size_t first_state = 0;  ///< the cut before is after state first_state - 1
  std::size_t last_state = 0;   ///< all that this state names is done when the stage ends
  std::size_t replicas = 1;     ///< workers that take turns at the mini-batches
  Work work;                    ///< one replica, one mini-batch
  double time_s = 0;            ///< per mini-batch, all replicas and the reduction of their gradients counted
  /// Per mini-batch, output and its gradient on one link to the next stage; whole groups that take turns have
  /// a link each.
  double transfer_s = 0;
};

struct Plan {
  std::string method;
  std::vector<Stage> stages;
  double pipeline_time_s = 0;       ///< of the slowest stage, per mini-batch
  double transfer_time_s = 0;       ///< of the slowest link between stages, per mini-batch
  double data_parallel_time_s = 0;  ///< per mini-batch with the whole model on every worker
};

/// Workers of all levels together.
std::size_t num_workers(const PlanOptions& options);

/// A way to make plans.
struct Partitioner {
  std::string name;
  std::string summary;
  bool replicates = false;  ///< may give a stage several workers, unless the plan is to be straight
  std::vector<Stage> (*make)(const Profile& profile, const PlanOptions& options);
};

/// All of them, the default first.
const std::vector<Partitioner>& partitioners();
std::vector<std::string> partitioner_names();

/// Throws InvalidArgument: unknown method (with the nearest known one), no level, no worker, more than
/// kMaxWorkers, a bandwidth of 0 or less. Also one worker per stage but fewer layers than workers. With W
/// workers in all and S states it costs S^2 W^2 operations, and S^3 W^2 for the workers of an inner level.
Plan make_plan(const Profile& profile, const PlanOptions& options, const std::string& method);

/// The largest number of workers that make_plan takes.
constexpr std::size_t kMaxWorkers = 4096;

/// Levels from two lists as a person writes them, innermost first: "4,2" and "1e10,1.25e9". Throws
/// InvalidArgument: not numbers, lists of unequal length.
std::vector<Level> parse_levels(std::string_view workers, std::string_view bandwidths);

}  // namespace trireme::plan
