#pragma once
// One training run from a configuration to a summary. `trireme train` calls this on every rank, and so do
// programs that want a whole run. Writes runs/NAME/: config.toml, metrics.jsonl, model.safetensors,
// summary.json, all by rank 0, and checkpoints/, each rank its part. Collective: every rank of the world
// calls it with the same configuration.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/stop_request.h"
#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/model/model.h"
#include "trireme/objective/objective.h"
#include "trireme/telemetry/goodput.h"
#include "trireme/train/config/run_config.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/planner/plan_review.h"
#include "trireme/train/report/loading_summary.h"
#include "trireme/train/report/memory_report.h"
#include "trireme/train/run/run_memory.h"
#include "trireme/train/step/evaluate.h"
#include "trireme/train/step/step_reports.h"

namespace trireme::train {

enum class RunStart {
  kFresh,   ///< a finished or abandoned run of that name is moved to NAME.1, NAME.2, ...
  kResume,  ///< continues from the newest valid checkpoint of that name
};

class Trainer;

/// Decision of a callback: to continue, or to end the run after this step.
enum class RunControl { kContinue, kStop };

/// Result of a run, as in summary.json.
struct RunResult {
  std::string status;  ///< "completed", "stopped" (by a callback), "interrupted" (by a signal)
  int exit_code = 0;   ///< 0, or 128 + the signal that interrupted the run
  std::filesystem::path folder;
  int world_size = 1;
  std::int64_t steps = 0;                ///< done by the end, those before a resume included
  std::optional<Evaluation> evaluation;  ///< the last one; none when there was nothing left to do
  std::string held_out = "test";         ///< name of the data it was on
  double train_loss = 0;                 ///< mean over the last epoch
  double samples_per_s = 0;              ///< all ranks together, time of evaluations and checkpoints left out
  double steps_s = 0;                    ///< seconds in steps, of this process
  double step_s = 0;                     ///< of one, without the process's first two; 0: there were no others
  std::int64_t sent_to_sites_bytes_of_step = 0;   ///< by rank 0 to other sites, as if in a ring
  std::int64_t sent_to_stages_bytes_of_step = 0;  ///< by rank 0 to other stages
  /// Of gradients and gathered weights, by rank 0 to replicas, as if in a ring.
  std::int64_t sent_bytes_of_step = 0;
  std::optional<PlanReview> plan_review = std::nullopt;  ///< of parallel.plan = "auto"; on rank 0
  std::string found_by_reduction = {};  ///< advice for gradients of this run, in words; empty: none
  std::optional<optim::GradientNoise> noise = std::nullopt;  ///< over its last part, where it was measured
  std::vector<Decision> decisions = {};                      ///< of train.adapt, of this process
  double checkpoint_stall_s = 0;  ///< seconds for which saving kept training waiting
  double wall_s = 0;              ///< of this process, from the start of the run
  telemetry::GoodputRecord goodput =
      {};  ///< over all starts of the run; on rank 0, without measurements elsewhere
  std::uint64_t peak_rss_bytes = 0;  ///< of the largest rank
  MemoryReport memory = {};          ///< of the rank with the highest peak of tensors
  LoadingSummary loading = {};       ///< of all ranks
  std::string weights_xxh3;          ///< of parameters and buffers
};

/// Callbacks and parts of a custom program. Called on every rank, at the same steps; empty ones are left out.
/// An exception ends the run as any other error does.
struct RunCallbacks {
  /// When model and optimizer are made and, where that was asked for, restored; before the first step.
  std::function<void(Trainer&)> on_start = nullptr;
  /// After every step: number, loss of the global batch, learning rate, ... It is called during the step
  /// after it, when the ranks have exchanged their losses.
  std::function<void(const StepReport&)> on_step = nullptr;
  /// After every evaluation. All ranks have the same numbers: an answer that depends on nothing else is the
  /// same on all of them, as it has to be. kStop ends the run after this step, as if it had been the last.
  std::function<RunControl(std::int64_t step, const Evaluation&)> on_evaluation = nullptr;
};

/// Inputs of a run besides its configuration.
struct RunPlan {
  RunStart start = RunStart::kFresh;
  const StopRequest* stop = nullptr;  ///< asked before every step
  double began_unix_s = 0;  ///< from which the run's goodput counts: the start of its process; 0: the call
  /// Custom parts that replace those of the configuration.
  std::shared_ptr<model::Model> model = nullptr;
  std::optional<data::DataSource> data = std::nullopt;
  std::shared_ptr<const objective::Objective> objective = nullptr;
  RunCallbacks callbacks = {};
  /// Of a process of an elastic job, the same in each of its worlds; null: the state of a lost world is not
  /// kept.
  RunMemory* memory = nullptr;
};

/// Whether a run of the configuration can have so many ranks. Its data and model are not looked at.
bool can_run_on(const RunConfig& config, int num_ranks);

/// Trains until the configured end, or until `plan.stop` is set on any rank; all ranks end at the same step.
/// A context whose launcher has restarted the world resumes by itself where a checkpoint exists. Throws
/// DivergedError (loss not finite: step and rank named), CommError, DataError, InvalidArgument.
RunResult run_training(const RunConfig& config, comm::Context& context, const RunPlan& plan = {});
/// The same for a plan that is there already.
RunResult run_training(const ParallelPlan& layout, comm::Context& context, const RunPlan& plan = {});

}  // namespace trireme::train
