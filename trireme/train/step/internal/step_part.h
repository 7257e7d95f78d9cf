#pragma once
// A part of a training step is one feature (loss scaling, local SGD, a moving average, ...). It has one file
// in parts/, and one row in the table of parts/step_parts.cpp. A part decides from the plan whether it is in
// a run, and uses the hooks below that it needs. Trainer calls the hooks of all parts in the order of the
// table and names none of them. To add a feature: derive StepPart, write its make function, add its row.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/data/training_data.h"
#include "trireme/model/model.h"
#include "trireme/objective/objective.h"
#include "trireme/optim/learning_rate.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/plan/placement.h"
#include "trireme/train/report/memory_report.h"
#include "trireme/train/step/batch_feed.h"
#include "trireme/train/step/state_part.h"
#include "trireme/train/step/step.h"
#include "trireme/train/step/step_reports.h"
#include "trireme/train/step/trained_model.h"

namespace trireme::train {

struct RunResult;

/// Inputs of parts, before the model is cut into stages. `context`, `data` and `model` outlive the part; the
/// others are copied where they are needed later.
struct PartSetup {
  const ParallelPlan& plan;  ///< for this model; cuts that are measured are still open
  comm::Context& context;
  const PlanGroups& groups;
  const data::DataSource& data;
  model::Model& model;  ///< that this rank computes: the whole, or its parts of layers
  model::Model& whole;  ///< the model before layers are cut
  std::shared_ptr<const objective::Objective> objective;
  c10::Device device;
};

/// Inputs of the pipeline.
struct PipelineSetup {
  const ParallelPlan& plan;  ///< with its cuts
  parallel::PipelineGroups groups;
  std::vector<model::Layer> layers;
  parallel::PipelineOptions options;
};

/// The objects of a trainer, once all of them are there. They outlive its parts.
struct TrainerObjects {
  const ParallelPlan& plan;
  comm::Context& context;
  const PlanGroups& groups;
  const TrainedModel& model;
  parallel::Pipeline& pipeline;
  const UpdatedParameters& parameters;
  optim::Optimizer& optimizer;
  const optim::LearningRate& learning_rate;
  BatchFeed& batches;
  /// Which steps are skipped is decided on the device (Step::leave_out), and known to the host later.
  bool skips_on_device;
};

/// Exchanges of step reports that may be under way, and whether several steps share one.
struct ReportExchange {
  int depth = 1;
  Bundling bundling = Bundling::kNone;
};

/// Requirements of a complete state() after a step.
enum class Completion {
  kNone,       ///< nothing: it is whole
  kOwn,        ///< complete_own_state(), or synchronize() and complete_state()
  kCollective  ///< synchronize() and complete_state()
};

/// Every hook does nothing unless a part overrides it. Collective hooks are called on all ranks in the same
/// order. One thread.
class StepPart {
 public:
  virtual ~StepPart() = default;

  // While the trainer is made, in this order.
  /// Wraps layers, and sets options of the pipeline. Collective.
  virtual void configure(PipelineSetup& /*setup*/) {}
  /// May replace the optimizer by one that wraps it.
  virtual std::unique_ptr<optim::Optimizer> wrap_optimizer(std::unique_ptr<optim::Optimizer> optimizer,
                                                           parallel::Pipeline& /*pipeline*/,
                                                           const optim::NamedTensors& /*parameters*/) {
    return optimizer;
  }
  /// All objects are there. Collective.
  virtual void attach(const TrainerObjects& /*objects*/) {}
  /// Where ranks may be at different steps: how their reports are exchanged.
  virtual std::optional<ReportExchange> report_exchange() const { return std::nullopt; }

  // In a step, in this order.
  /// While the result lives, this thread computes with the part's choices. Also for evaluations.
  virtual std::shared_ptr<void> compute_scope() { return nullptr; }
  /// Before anything computes; the part may change the learning rate.
  virtual void begin_step(Step& /*step*/) {}
  /// Micro-batches of the steps after `steps_done` begin to enter the pipeline.
  virtual void begin_stream(parallel::Pipeline::Stream& /*stream*/, std::int64_t /*steps_done*/) {}
  /// The batch is on the host; the part may set step.count. Collective.
  virtual void batch_arrived(Step& /*step*/, const data::StepBatch& /*batch*/) {}
  /// A micro-batch, whose losses get that weight, enters the pipeline.
  virtual void microbatch_enters(const data::Example& /*samples*/, double /*weight*/) {}
  /// Whether its hooks need the skipped steps, before their update.
  virtual bool asks_for_skips() const { return false; }
  /// All gradients are reduced. The part may change them, or set step.report.skipped: then skipped() of all
  /// parts replaces the hooks up to and with updated(). Or it sets step.leave_out. Collective.
  virtual void gradients_ready(Step& /*step*/) {}
  /// Gradients for observers that replace this rank's own. Collective.
  virtual std::optional<optim::NamedTensors> observed_gradients() { return std::nullopt; }
  /// The update comes next. Collective.
  virtual void before_update(Step& /*step*/) {}
  /// The optimizer has updated. Collective.
  virtual void updated(Step& /*step*/) {}
  /// The step was skipped instead.
  virtual void skipped(Step& /*step*/) {}
  /// The program of the step has run: the part completes the report. Collective.
  virtual void end_step(Step& /*step*/) {}
  /// The report of a step is known to all ranks, in the order of steps. `steps_done`: of this rank.
  virtual void reported(StepReport& /*report*/, std::int64_t /*steps_done*/) {}

  // Between steps.
  virtual Completion completion() const { return Completion::kNone; }
  /// With Completion::kOwn: state() is whole, without the other ranks, which may be gone.
  virtual void complete_own_state() {}
  /// This rank's parameters become those of all ranks' steps. Collective.
  virtual void synchronize() {}
  /// After synchronize(): add_state() has its values, too. Collective.
  virtual void complete_state() {}
  /// While the result lives, the model has the weights that are evaluated and exported; null: its own.
  virtual std::shared_ptr<void> evaluated_weights() { return nullptr; }
  /// May replace tensors of the model's state that replicas do not hold alike.
  virtual void change_model_state(StateParts& /*model*/) {}
  /// Adds its state from step to step; may change existing entries: the state of model, optimizer, learning
  /// rate, and of the parts before it.
  virtual void add_state(StateParts& /*state*/) {}
  /// The state of the run after `steps_done` steps has been restored. Collective.
  virtual void restored(std::int64_t /*steps_done*/) {}

  // For reports.
  /// Steps that were skipped since the last update. May wait for the device.
  virtual std::int64_t skipped_in_a_row() const { return 0; }
  virtual void count(StepCounters& /*counters*/) const {}
  virtual void report_memory(MemoryReport& /*report*/) const {}
  virtual void summarize(RunResult& /*result*/) const {}
};
using StepParts = std::vector<std::unique_ptr<StepPart>>;

/// The parts of a run of that plan, in the order of the table. Collective.
StepParts make_step_parts(const PartSetup& setup);

}  // namespace trireme::train
