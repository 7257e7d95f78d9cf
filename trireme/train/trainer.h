#pragma once
// The training loop's inside: one step is the loader's next batch, run through the step program of a pipeline
// whose stages are replicated (parallel/pipeline/pipeline.h); plain data-parallel training is the program
// with one stage. Forward and backward per micro-batch, gradients reduced over the replicas while the last
// backward runs, then one optimizer update. Losses are sums, divided by what the *global* batch counts, so
// the same global batch gives the same numbers on any number of ranks, for any cut and for any accumulation,
// up to the rounding of a different summing order, the smaller last batch of an epoch included. Collective:
// every rank makes one and calls the same methods in the same order. One thread.
//
// What a model draws from torch's generators in a step or an evaluation is a function of run.seed, the step
// and the rank (ADR 0012): they are seeded anew at each. Ranks that are threads of one process share them.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/checkpoint/safetensors.h"
#include "trireme/checkpoint/shard.h"
#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/model/convolution_choice.h"
#include "trireme/model/model.h"
#include "trireme/objective/objective.h"
#include "trireme/optim/learning_rate.h"
#include "trireme/optim/loss_scaler.h"
#include "trireme/optim/moving_average.h"
#include "trireme/optim/offload.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/data/hook_state_copy.h"
#include "trireme/parallel/data/replica_check.h"
#include "trireme/parallel/local/outer_steps.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/train/calendar.h"
#include "trireme/train/device_feed.h"
#include "trireme/train/evaluate.h"
#include "trireme/train/gradient_norm.h"
#include "trireme/train/held_parts.h"
#include "trireme/train/memory_report.h"
#include "trireme/train/noise_scale.h"
#include "trireme/train/parallel_plan.h"
#include "trireme/train/placement.h"
#include "trireme/train/step_reports.h"
#include "trireme/train/work_shares.h"

namespace trireme::model {
class ActivationStore;
}

namespace trireme::train {

class ExactRun;
class ArrivingRun;
class FirstWeights;

class Trainer {
 public:
  /// Makes model, optimizer and loader from the configuration and checks that all ranks hold the same. Of the
  /// model each rank makes its own stages alone. With `own`, that model is trained, from the values that rank
  /// 0's has or, deferred (model/deferred.h), from run.seed, and the configuration's is not made;
  /// its modules stay in the modes, training or evaluation, that their owner puts them into. With
  /// `own_objective` that is learnt, instead of the configuration's. Refuses what the command line refuses.
  /// `context` and `data` outlive it. Throws InvalidArgument, CommError, DataError.
  Trainer(const RunConfig& config, comm::Context& context, const data::DataSource& data,
          std::shared_ptr<model::Model> own = nullptr,
          std::shared_ptr<const objective::Objective> own_objective = nullptr);
  /// The same for a plan that is there already.
  Trainer(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
          std::shared_ptr<model::Model> own = nullptr,
          std::shared_ptr<const objective::Objective> own_objective = nullptr);

  /// What its stages are made of.
  const std::vector<model::Layer>& layers() const { return layers_; }
  /// What it carries out, cuts included.
  const ParallelPlan& plan() const { return plan_; }

  /// Steps of the whole run, and those done so far.
  std::int64_t total_steps() const { return calendar_.total_steps(); }
  std::int64_t steps_done() const { return step_; }
  /// After those, or when a schedule that is read at the progress is over.
  bool finished() const { return step_ >= total_steps() || (noise_ && noise_->schedule_is_over()); }
  const Calendar& calendar() const { return calendar_; }
  const data::DataSource& data() const { return data_; }
  /// The learning rate of step number `step`, 1 for the first, in a run of that configuration that has this
  /// one's data and what its schedule has learnt from metrics. Without the gain of AdaScale.
  double rate_of(const RunConfig& config, std::int64_t step) const;

  /// One step. `stop_signal` is what this rank was asked (0: nothing). Returns the report of the step before,
  /// none for the first. Of an asynchronous pipeline: up to and with this rank's next update; the report is
  /// some steps older. Throws DivergedError, CommError, DataError.
  std::optional<StepReport> step(int stop_signal = 0);
  /// The oldest report that is still to come; none when all have come.
  std::optional<StepReport> last_report() { return known(reports_.finish()); }

  /// Whether all ranks have done the same steps, as evaluation and checkpoints need it. An asynchronous
  /// pipeline is drained at the end of an epoch, where the configuration evaluates or saves, and soon after a
  /// report with a stop signal; others are always.
  bool drained() const { return pipeline_.drained(); }

  /// Where servers update: this rank's parameters are what all ranks' steps have made of them when it
  /// returns, and buffers are rank 0's. Where gradients go by need: all updates have been made. Where sites
  /// train apart: model_state() is their mean. Else nothing is to be done.
  void meet();
  /// meet(), and state() has its values, too: before a save.
  void bring_state();

  /// Loss and metrics of the objective on the test data. A learning rate that follows a metric follows that
  /// loss.
  Evaluation evaluate();

  /// Calls `observer` in every step with the gradients of this rank's parameters by name, when they are
  /// reduced and not yet clipped; not in a step that is left out. For those who look: they must not be
  /// changed.
  void on_gradients(std::function<void(const optim::NamedTensors&)> observer) {
    observer_ = std::move(observer);
  }

  /// Calls `prepare`, besides those that were given before, whenever parameters or state() are about to
  /// change, in updates and evaluations: whoever reads them meanwhile has to be done when it returns.
  void before_changes(std::function<void()> prepare) { before_changes_.push_back(std::move(prepare)); }

  /// Steps that were left out since the last update, because gradients were not finite.
  std::int64_t skipped_in_a_row() const { return skipped_in_a_row_; }
  /// A parameter, or a tensor of the optimizer or the moving average, of this rank that holds a number which
  /// is not finite; empty when all are. One pass over them.
  std::string not_finite();

  /// Goes on behind step number `step`, after parameters and optimizer state have been restored.
  void seek(std::int64_t step);

  /// While the result lives, the model's parameters are their moving averages, where there are any.
  [[nodiscard]] std::unique_ptr<optim::ExponentialMovingAverage::SwapScope> use_averages() {
    return average_ ? std::make_unique<optim::ExponentialMovingAverage::SwapScope>(*average_) : nullptr;
  }

  /// The model, or its tensor-parallel form. On a rank of a pipeline only the parameters of its own stages
  /// have values: others are empty.
  model::Model& model() { return *model_; }
  /// Of this rank, its pieces where they are sharded: in the model's order, where it is not cut.
  const optim::NamedTensors& parameters() const { return parameters_; }
  /// What of parameters(), and of tensors in state() that are called PREFIX/NAME and have their sizes, are
  /// parts of a whole.
  const HeldParts& held() const { return held_; }
  optim::NamedTensors buffers() const { return pipeline_.buffers(); }
  /// Parameters and buffers of this rank by name; where sites train apart, what they were on the mean at
  /// meet(). Shared, not copied.
  checkpoint::TensorMap model_state() const;
  const parallel::Pipeline& pipeline() const { return pipeline_; }
  /// What steps and evaluations change besides the model, by name: the optimizer's state, and under "lr/",
  /// "scaler/", "ema/" and "noise/" that of the learning rate, the loss scaler, the moving average and the
  /// noise of gradients; and kChoices. Shared, not copied: restore it in place. What lives elsewhere is of
  /// the meta device, and elsewhere() has its values.
  std::map<std::string, at::Tensor> state();
  /// What sites that train apart have each for itself: their model, and the optimizer's state under
  /// "optimizer/". Shared, not copied.
  optim::NamedTensors own_state();
  /// Of such sites; null where there are none.
  parallel::OuterSteps* outer_steps() const { return outer_steps_.get(); }
  /// Null where all is in memory.
  std::shared_ptr<const checkpoint::Elsewhere> elsewhere() const;
  /// The names in state() of what the run has measured and goes on with, so that its numbers stay: kernels of
  /// convolutions, and all-reduces between hosts. Texts.
  static constexpr const char* kConvolutions = "convolutions/kernels";
  static constexpr const char* kAllReduces = "all_reduces/between_hosts";
  static constexpr std::array kChoices{kConvolutions, kAllReduces};
  /// What the names of the noise of gradients in state() begin with.
  static constexpr const char* kNoise = "noise/";
  /// Before a state is restored: how long its text is. 0: it has none, and seek() takes what was measured
  /// here.
  void make_room_for_choice(const std::string& name, std::int64_t bytes);
  /// What compressed reductions keep of gradients; see there. Shared, not copied.
  parallel::HookState compression_state() const { return hook_ ? hook_->state() : parallel::HookState(); }
  /// It has been filled. Collective.
  void compression_restored() {
    if (hook_) hook_->restored();
  }
  /// The gradient noise scale over the last part of the run, in samples; none where it was not measured.
  std::optional<optim::GradientNoise> noise() const { return noise_ ? noise_->noise() : std::nullopt; }
  /// Bytes of gradients, and of weights that are gathered, that this rank has sent to replicas so far, as if
  /// in a ring.
  std::int64_t sent_bytes() const { return hook_ ? hook_->sent_bytes() : 0; }
  /// What the reduction of gradients has found to be best, in words; empty: nothing.
  std::string found_by_reduction() const { return hook_ ? hook_->found() : std::string(); }
  /// Of activations and their gradients, to other stages.
  std::int64_t sent_to_stages_bytes() const { return pipeline_.sent_bytes(); }
  /// Bytes of weights and gradients that it has sent to other sites.
  std::int64_t sent_to_sites_bytes() const { return outer_steps_ ? outer_steps_->sent_bytes() : 0; }
  /// Which of the pipelines side by side this rank belongs to.
  int replica() const { return groups_.replicas ? groups_.replicas->rank() : 0; }
  /// How this rank's data have come so far.
  data::LoadingReport loading() const { return feed_.report(); }
  /// Seconds this rank has waited for other ranks so far.
  double comm_wait_s() const {
    return counts_waited_s_ + pipeline_.waited_s() + optimizer_->waited_s() +
           (outer_steps_ ? outer_steps_->waited_s() : 0);
  }
  /// What this rank's memory holds. Of the process: ranks that are its threads have one between them.
  MemoryReport memory() const;

 private:
  parallel::PipelineOptions options_of_pipeline();
  void name_memory();
  model::ConvolutionChoice convolutions() const;
  void take_choices();
  void key_generators(std::string_view purpose) const;
  StepReport report_of_step(int stop_signal) const;
  /// In the next steps that nobody reads yet.
  void deal(const WorkShares::Change& change);
  /// A report that all ranks have, and what this one makes of it.
  std::optional<StepReport> known(std::optional<StepReport> report);
  /// Of the ranks that hold parts of the same layers, or pieces of the same sequences, and know the same of
  /// the whole, one speaks for all.
  bool speaks() const {
    return form_options_.group.rank() == 0 && (!groups_.context || groups_.context->rank() == 0);
  }
  /// Losses of pieces add up.
  bool speaks_of_loss() const {
    return objective_->class_loss() ? form_options_.group.rank() == 0 : speaks();
  }
  /// Of a micro-batch.
  at::Tensor loss_of(const Fields& outputs, const Fields& targets) const;
  /// What an evaluation looks at; undefined on ranks that do not look.
  Fields evaluated(const Fields& inputs);
  /// Up to the next step at which all ranks meet: the next one, unless the pipeline is asynchronous.
  void start_stream();
  /// Inputs for every number of samples that micro-batches of steps before `end` have.
  std::vector<Fields> shapes_before(std::int64_t end) const;
  void note_staleness();
  bool has_common_weights() const;
  std::vector<ParameterBytes> bytes_of_parameters(WeightsMemory memory) const;
  /// Of the step behind so many.
  void take_batch(std::int64_t steps);
  /// Of the targets of the batch at hand, on this rank, and on all of a group.
  double own_count() const;
  double sum_of_counts(std::optional<comm::Group> group);
  /// Whether sites average their gradients in the step under way, or there are none.
  bool steps_together() const { return !outer_steps_ || outer_steps_->averages_gradients(step_ + 1); }
  /// What this rank computes with, by the stages it has.
  data::Needed computed_with() const;
  /// And what it reads for that: what losses are divided by is counted on all stages.
  data::Needed needed() const;
  /// Of a micro-batch's targets.
  double count_of(const data::Example& samples) const;
  /// Micro-batch `m` of the stream; takes the next batch where that is its first. Losses are weighed so that
  /// they add up to the mean over the global batch.
  parallel::MicroBatch microbatch(int m);
  /// False when the step has to be left out.
  bool gradients_are_usable();
  /// Throws DivergedError after train.max_skipped_steps of them.
  void note_skip();
  /// Ranks that hold all of the model together.
  comm::Group& holders() { return plan_.is_in_parts() ? context_.world() : groups_.pipeline; }
  /// True when it is on all of them.
  bool on_all_holders(bool here);
  void update();
  /// Throws CommError, on all ranks, where parameters have drifted apart.
  void check_replicas(std::int64_t step);

  comm::Context& context_;
  const data::DataSource& data_;
  PlanGroups groups_;
  std::shared_ptr<model::Model> whole_;                ///< until it is set up
  std::shared_ptr<const FirstWeights> first_weights_;  ///< until then; null: not read layer by layer
  const parallel::TensorFormOptions form_options_;
  const parallel::TensorForm form_;  ///< where layers or sequences are cut, else the whole
  const std::shared_ptr<model::Model> model_;
  const std::shared_ptr<const objective::Objective> objective_;
  const double count_of_sample_;  ///< where targets of all samples count alike
  ParallelPlan plan_;
  const c10::Device device_;
  const RunConfig& config_;                                    ///< the plan's
  const std::shared_ptr<optim::Offload> offload_;              ///< null: all is in memory
  const std::shared_ptr<model::ActivationStore> activations_;  ///< null: the same
  const model::ConvolutionChoice convolutions_found_;          ///< when it was made, by all ranks
  std::map<std::string, at::Tensor> choices_;                  ///< in use, as text; empty ones are none
  /// The one of convolutions, and the text that it was read from.
  mutable std::pair<std::string, model::ConvolutionChoice> convolutions_read_;
  std::shared_ptr<ExactRun> exact_;        ///< where run.exact asks for it
  std::shared_ptr<ArrivingRun> arriving_;  ///< where updates come while layers compute
  std::vector<model::Layer> layers_;
  std::map<std::string, std::int64_t> parameter_bytes_;  ///< of this rank's stages, whole
  std::shared_ptr<parallel::CommHook> hook_;             ///< of the reductions of gradients
  parallel::Pipeline pipeline_;
  optim::NamedTensors parameters_;
  HeldParts held_;
  optim::NamedTensors judged_;  ///< by whose gradients steps are clipped or left out: whole ones where exact
  GradientNorm gradient_norm_;
  DeviceFeed feed_;
  const Calendar calendar_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::LearningRate> learning_rate_;
  std::optional<optim::LossScaler> scaler_;                  ///< where the precision needs one
  std::optional<parallel::HookStateCopy> hook_before_step_;  ///< where steps may be left out
  std::optional<optim::ExponentialMovingAverage> average_;   ///< where train.ema_decay asks for one
  const std::unique_ptr<parallel::OuterSteps> outer_steps_;  ///< where sites train apart
  StepReports reports_;
  std::unique_ptr<NoiseScale> noise_;                      ///< null: nobody asks
  std::unique_ptr<parallel::ReplicaCheck> replica_check_;  ///< since it was first due
  std::unique_ptr<WorkShares> work_shares_;  ///< where replicas share out a batch by how fast they are

  std::function<void(const optim::NamedTensors&)> observer_;
  std::vector<std::function<void()>> before_changes_;
  std::int64_t step_ = 0;  ///< steps done
  std::int64_t skipped_in_a_row_ = 0;
  std::int64_t stream_begin_ = 0;  ///< those before the stream under way was started
  at::Tensor grad_norm_;           ///< of the update, where somebody wants to know it
  double count_of_batch_ = 0;      ///< what its losses are divided by
  double counts_waited_s_ = 0;
  StepReport report_;
  MemoryUse memory_at_update_;
  bool has_stepped_ = false;
};

}  // namespace trireme::train
