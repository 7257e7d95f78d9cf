#pragma once
// The implementation of the training loop. One step is the loader's next batch, run through the step program
// of a pipeline whose stages are replicated (parallel/pipeline/pipeline.h). Plain data-parallel training is
// the program with one stage. Forward and backward run per micro-batch, gradients are reduced over the
// replicas while the last backward runs, then one optimizer update follows. Losses are sums, divided by the
// count of the *global* batch. So the same global batch gives the same numbers on any number of ranks, for
// any cut and any accumulation, up to rounding. This includes the smaller last batch of an epoch. Collective:
// every rank makes one and calls the same methods in the same order. One thread.
// | A model's random numbers from torch's generators are a function of run.seed, the step and the rank (ADR
// 0012). The generators are seeded again for each step and evaluation. Ranks that are threads of one process
// share them.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/checkpoint/shard.h"
#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/model/model.h"
#include "trireme/objective/objective.h"
#include "trireme/optim/learning_rate.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/plan/placement.h"
#include "trireme/train/report/memory_report.h"
#include "trireme/train/step/batch_feed.h"
#include "trireme/train/step/evaluate.h"
#include "trireme/train/step/shard_specs.h"
#include "trireme/train/step/state_part.h"
#include "trireme/train/step/step.h"
#include "trireme/train/step/step_reports.h"
#include "trireme/train/step/step_schedule.h"
#include "trireme/train/step/trained_model.h"

namespace trireme::train {

class StepPart;
struct RunResult;
struct TrainerSetup;

class Trainer {
 public:
  /// Makes model, optimizer and loader from the configuration and checks that they are the same on all ranks.
  /// Each rank makes only its own stages of the model. With `own`, that model is trained, and the
  /// configuration's is not made. It starts from rank 0's values or, deferred (model/deferred.h), from
  /// run.seed. Its modules stay in their training or evaluation modes. With `own_objective` that objective
  /// replaces the configuration's. Rejects the same configurations as the command line. `context` and `data`
  /// outlive it. Throws InvalidArgument, CommError, DataError.
  Trainer(const RunConfig& config, comm::Context& context, const data::DataSource& data,
          std::shared_ptr<model::Model> own = nullptr,
          std::shared_ptr<const objective::Objective> own_objective = nullptr);
  /// The same for a plan that is there already.
  Trainer(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
          std::shared_ptr<model::Model> own = nullptr,
          std::shared_ptr<const objective::Objective> own_objective = nullptr);

  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// The layers of its stages.
  const std::vector<model::Layer>& layers() const { return model_.layers; }
  /// The plan that it runs, cuts included.
  const ParallelPlan& plan() const { return plan_; }

  /// Steps of the whole run, and those done so far.
  std::int64_t total_steps() const { return step_schedule().total_steps(); }
  std::int64_t steps_done() const { return steps_done_; }
  bool finished() const { return steps_done_ >= total_steps(); }
  const StepSchedule& step_schedule() const { return batches_.step_schedule(); }
  const data::DataSource& data() const { return data_; }
  /// The learning rate of step number `step`, 1 for the first, in a run of that configuration with the data
  /// of this run. It includes the schedule's reaction to metrics.
  double rate_of(const RunConfig& config, std::int64_t step) const;

  /// One step. `stop_signal`: the signal that this rank has received (0: none). Returns the report of the
  /// previous step, none for the first. An asynchronous pipeline runs up to and including this rank's next
  /// update, and its report is some steps older. Throws DivergedError, CommError, DataError.
  std::optional<StepReport> step(int stop_signal = 0);
  /// The oldest report that was not returned yet; none when all were.
  std::optional<StepReport> last_report() { return known(reports_.finish()); }

  /// The step whose state this rank's state() is, also after an exception. None if an update was running, or
  /// if other ranks have a part of it. State that changes in forward or backward (StatePart) may be newer.
  std::optional<std::int64_t> whole_step() const;
  /// Then: state() is whole, also where servers have a part of it. Not collective. Throws CommError.
  void complete_own_state();
  /// Whether all ranks have done the same steps, as evaluation and checkpoints need it. A synchronous
  /// pipeline always has. An asynchronous one is drained at the end of an epoch, and where the configuration
  /// evaluates or saves. It is also drained soon after a report with a stop signal.
  bool drained() const { return pipeline_.drained(); }

  /// Brings parameters to the result of all ranks' steps, and buffers to those of rank 0, if ranks may be at
  /// different steps: servers update, updates are lazy, or sites use local SGD (model_state() is their mean).
  /// Otherwise does nothing. Collective.
  void synchronize();
  /// synchronize() for state() as well: before a save. Collective.
  void complete_state();

  /// Loss and metrics of the objective on the test data. A learning rate that follows a metric uses this
  /// loss.
  Evaluation evaluate();

  /// Calls `observer` in every step with the gradients of this rank's parameters by name, when they are
  /// reduced and not yet clipped; not in a skipped step. The observer must not change them.
  void on_gradients(std::function<void(const optim::NamedTensors&)> observer) {
    listeners_.gradients = std::move(observer);
  }

  /// Adds a function that is called before updates and evaluations change parameters or state(): readers of
  /// them have to be done when it returns. Parts that change in forward or backward (StatePart) are not
  /// covered.
  void before_changes(std::function<void()> prepare) {
    listeners_.before_changes.push_back(std::move(prepare));
  }

  /// Steps that were skipped since the last update because gradients were not finite. May wait for the
  /// device.
  std::int64_t skipped_in_a_row() const;
  /// A tensor of state() that must be finite (StatePart) and holds, on this rank, a number that is not; empty
  /// when all are. One pass over them.
  std::string not_finite();

  /// Continues after step number `step`, after state() has been restored. Collective.
  void seek(std::int64_t step);

  /// While the result lives, the model has the weights that are evaluated and exported: moving averages, or
  /// the mean of all sites. Empty if these are the model's own.
  [[nodiscard]] std::vector<std::shared_ptr<void>> evaluated_weights();

  /// The model, or its tensor-parallel form. On a rank of a pipeline only the parameters of its own stages
  /// have values: others are empty.
  model::Model& model() { return model_.module(); }
  /// The parameters of this rank, or its shards of them; in the model's order if the model is not cut.
  const optim::NamedTensors& parameters() const { return parameters_.all; }
  /// Which of parameters() are shards of a whole; also for tensors of state() that are called PREFIX/NAME and
  /// have their sizes.
  const ShardSpecs& held() const { return parameters_.held; }
  optim::NamedTensors buffers() const { return pipeline_.buffers(); }
  /// Parameters and buffers of this rank; with local SGD their mean over the sites at the last synchronize().
  /// Shared, not copied.
  StateParts model_state();
  const parallel::Pipeline& pipeline() const { return pipeline_; }
  /// The state of a checkpoint: all that steps and evaluations change, the model included. Shared, not
  /// copied: restore it in place, then seek(). Offloaded tensors are meta tensors, with the storage of their
  /// values.
  StateParts state();
  /// The storage of offloaded parameters, which are meta tensors; null if all are in memory.
  const std::shared_ptr<const checkpoint::OffloadedStorage>& offloaded_storage() const {
    return parameters_.offloaded_storage;
  }
  /// The index of this rank's replica: its pipeline, among those of other samples.
  int replica() const { return groups_.replicas ? groups_.replicas->rank() : 0; }
  /// Waits of this rank for data so far.
  data::LoadingReport loading() const { return batches_.feed().report(); }
  /// This rank's waits and sent bytes so far.
  StepCounters counters() const;
  /// Fields of a run's result that the features of the run fill.
  void summarize(RunResult& result) const;
  /// The use of this rank's memory. Figures of the process are shared by ranks that are its threads.
  MemoryReport memory() const;

 private:
  /// Callbacks of the program.
  struct Listeners {
    std::function<void(const optim::NamedTensors&)> gradients;
    std::vector<std::function<void()>> before_changes;
  };

  explicit Trainer(TrainerSetup&& setup);
  std::vector<std::shared_ptr<void>> compute_scopes();
  void tell_of_changes() const;
  void seed_generators(std::string_view purpose) const;
  Step begin_step(int stop_signal) const;
  parallel::UnreadLoss run_program();
  void update();
  void observe_gradients();
  /// Feeds a completed report to the parts; returns it.
  std::optional<StepReport> known(std::optional<StepReport> report);
  /// A micro-batch of the stream; the first one of a batch fetches that batch. Losses are weighted so that
  /// they add up to the mean over the global batch.
  parallel::MicroBatch microbatch(int m);
  /// Fetches the batch of step `steps + 1`.
  void take_batch(std::int64_t steps);
  /// The inputs of an evaluation; undefined on ranks that do not compute it.
  Fields evaluated(const Fields& inputs);

  comm::Context& context_;
  const data::DataSource& data_;
  const ParallelPlan plan_;
  const PlanGroups groups_;
  const TrainedModel model_;
  parallel::Pipeline pipeline_;
  UpdatedParameters parameters_;
  const std::unique_ptr<optim::Optimizer> optimizer_;
  BatchFeed batches_;
  const std::unique_ptr<optim::LearningRate> learning_rate_;
  StepReports reports_;
  const std::vector<std::unique_ptr<StepPart>> parts_;  ///< features of the step, in the order of their table
  Listeners listeners_;
  Step step_;  ///< under way, or the last one
  std::int64_t steps_done_ = 0;
  bool is_updating_ = false;  ///< from the first change of the state to the end of the step
};

}  // namespace trireme::train
