#pragma once
// Pipeline parallelism: a chain of layers is cut into stages on the ranks of a group. A batch is cut into
// micro-batches, which go through the stages in the order of a step program (schedule/schedule_table.h names
// the schedules: GPipe, arXiv 1811.06965; 1F1B, arXiv 1806.03377 and 2104.04473; zero bubble, arXiv
// 2401.10241). The program is validated before it runs, and executed action by action. Receives are posted
// ahead of their use; sends do not wait.
//
//   parallel::Pipeline pipe(context, model::layers_of(chain), {.schedule = "1f1b"});
//   auto optimizer = optim::make_optimizer({.name = "sgd", .lr = 0.1}, pipe.parameters());
//   for (...) {
//     pipe.zero_grad();
//     const double loss = pipe.step(input, target, cross_entropy);
//     optimizer->step();
//   }
//
// Collective: every rank makes it from the same layers and options and calls the same methods with batches of
// the same shape. Gradients are those of the mean over the batch, whatever the schedule and the cut; for
// schedules that finish micro-batches in their order they are, bit by bit, those of one rank that accumulates
// the same micro-batches. A parameter that several ranks hold (a tied head, a stage on two ranks) gets the
// sum of their gradients on each of them. The input is a stream of updates. Schedules that update at the end
// of a step take streams of one. Schedules that never flush (PipeDream) take as many as there are until all
// ranks have to be at the same update. One thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/batch/fields.h"
#include "trireme/comm/context.h"
#include "trireme/model/layer.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/pipeline/pipeline_options.h"
#include "trireme/parallel/pipeline/unread_loss.h"
#include "trireme/parallel/zero/pieces.h"
#include "trireme/schedule/program.h"
#include "trireme/schedule/transport.h"

namespace trireme::parallel {

/// A part of a step's batch. On every rank of a pipeline the inputs have the same shapes; the values of an
/// input count on the rank with the first stage, those of a target on the one with the last.
struct MicroBatch {
  Fields input, target;
  double weight = 1;  ///< factor of its loss

  /// One without any is left out.
  std::int64_t rows() const { return input.empty() ? target.rows() : input.rows(); }
};

/// Results of the last stage in a step, without gradients: for metrics of your own.
struct StepOutputs {
  Fields outputs;                  ///< of the last layer, a row for each sample of the batch, in its order
  std::vector<at::Tensor> losses;  ///< of the micro-batches, in their order; no dims, on the device
};

class Engine;

class Pipeline {
 public:
  /// The loss of a micro-batch, as a tensor without dims; for step() its mean over the samples. `outputs` are
  /// those of the last layer. A function of two tensors will do where there is one of each.
  using Loss = std::function<at::Tensor(const Fields& outputs, const Fields& targets)>;

  /// Throws InvalidArgument: more stages than layers, invalid cuts, options that make no sense together. Also
  /// if ranks differ in layers or options, or if a skip lacks its counterpart (model/skips.h).
  Pipeline(comm::Context& context, const std::vector<model::Layer>& layers,
           const PipelineOptions& options = {});
  /// The same over a group (a mesh axis) instead of the world. With groups.data, there are several pipelines
  /// side by side, each with its part of the batch. Every stage is then replicated
  /// (distributed_data_parallel.h) and begins with the values of the group's first rank. Its gradients are
  /// reduced with options.data_parallel, from the stage's last backward on, while other stages still run.
  /// Without update in the options, they are reduced when step() returns.
  Pipeline(comm::Context& context, PipelineGroups groups, const std::vector<model::Layer>& layers,
           const PipelineOptions& options = {});
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Forward and backward of a batch, for schedules that update at its end: `input` (batch, ...) is used by
  /// the rank with the first stage, `target` (batch, ...) by the one with the last; of the others only the
  /// size of `input` counts. Gradients are added to those that are there. Returns the mean loss over the
  /// batch, on every rank. Throws InvalidArgument (a batch smaller than the number of micro-batches, a layer
  /// that returns another shape than in its first forward), CommError. `outputs`: filled on the rank with the
  /// last stage, empty on the others; its memory is that of all outputs of the batch.
  double step(const Fields& input, const Fields& target, const Loss& loss, StepOutputs* outputs = nullptr);

  /// The micro-batches of a pipeline from its start until it is drained, for callers that cut their batches
  /// and weigh the losses themselves. Adds the gradients of gradient_scale * sum(weight * loss).
  struct Stream {
    /// One, where the schedule updates at the end of a step. Asynchronous schedules (PipeDream, SOSP 2019;
    /// PipeDream-2BW, arXiv 2006.09503) update while micro-batches of others are under way. 1f1b-rr: rounds
    /// of options.num_microbatches, in which a stage updates once for as many as it has replicas.
    int num_updates = 1;
    /// Micro-batch m, asked in rising order when this rank comes to it; of update m /
    /// options.num_microbatches.
    std::function<MicroBatch(int m)> next;
    /// Inputs of all sizes that come, in the same order on all ranks; the values do not count. Empty:
    /// all micro-batches are asked for at the start.
    std::vector<Fields> shapes = {};
    Loss loss;
    /// Called after the loss of micro-batch m was computed, on the rank with the last stage, and once more
    /// where a stage is recomputed; null: nothing.
    std::function<void(int m, const Fields& outputs, const at::Tensor& loss)> on_loss = nullptr;
    double gradient_scale = 1;
    /// The same as a number of the device (no dims) that is not read on the host; undefined: that above.
    at::Tensor gradient_scale_there = {};
  };
  /// Throws InvalidArgument: one is under way, or an asynchronous one was left in the middle by an error.
  void start(Stream stream);
  /// Runs up to and including this rank's next update (options.update). Returns the sum of weight * loss of
  /// the last stage in between; 0 on ranks without it. `number`: global step, shown in status pages and used
  /// to seed stochastic rounding of messages (PipelineOptions::activations); step() counts from 1. Ranks of
  /// an asynchronous pipeline reach an update at different times, and none waits for the others. An error
  /// ends the stream. Throws like step().
  double advance(std::uint64_t number) { return advance_unread(number).read(); }
  /// The same, without waiting for the numbers of a device.
  UnreadLoss advance_unread(std::uint64_t number);
  /// The same, up to this rank's last update of PipelineOptions::num_microbatches micro-batches: that is one
  /// update, but several on a stage of 1f1b-rr.
  UnreadLoss advance_round_unread(std::uint64_t number);
  /// Drains an asynchronous pipeline after `num_updates` instead of those that it was started with: on all
  /// ranks the same, and more than any of them can have begun (asynchronous_margin() updates after its own
  /// last one).
  void finish_after(int num_updates);
  int asynchronous_margin() const;
  /// Everything that was started has been updated. evaluate(), and saving, need it.
  bool drained() const;
  /// Staleness of weights since construction: the cost of stashing and a bound for convergence.
  struct Staleness {
    int updates = 0;   ///< most updates of a stage between a forward and its backward
    int versions = 1;  ///< most versions of the weights in memory
  };
  Staleness staleness() const;

  /// Forward alone, without gradients, in evaluation mode. The outputs on the rank with the last stage, one
  /// undefined tensor on the others. Where parameters are sharded, collective among the replicas too: each
  /// calls it equally often, or calls sit_out_evaluation() where it has nothing to evaluate.
  Fields evaluate(const Fields& input);
  void sit_out_evaluation();

  /// With ReductionEnd::kByParameter: waits until the gradients of these parameters are reduced, which others
  /// may not be yet. Throws CommError.
  void finish_gradients(const optim::NamedTensors& parameters);

  /// Drops all gradients of this rank.
  void zero_grad();
  /// Scales the gradients of all ranks by one factor, so that the 2-norm of the whole model's is at most
  /// `max_norm`; returns the norm before, the same on all ranks. Parameters that several stages share, and
  /// replicas, count once. Call it after step(), or in PipelineOptions::update. Throws InvalidArgument: a
  /// schedule that never flushes; parameters cut by tensor parallelism; max_norm not above 0. Collective; one
  /// reduction of a number.
  double clip_grad_norm(double max_norm);

  /// Of this rank's stages, by the names of the whole model. Asynchronous: the newest version, which is the
  /// one to update, to save and to load.
  /// Where they are sharded over replicas, this rank's pieces, which have the gradients after a step; in
  /// their state between two steps, whether or not the whole is there.
  optim::NamedTensors parameters() const;
  Pieces pieces() const;
  optim::NamedTensors buffers() const;
  /// Parameters as this rank's layers compute with them; those that are gathered for use have no elements in
  /// between.
  optim::NamedTensors weights() const;
  /// Call it after parameters() were written outside the update, on all ranks: the next step and the next
  /// evaluation gather them again. Cheap. Where ranks share their memory, no rank may be computing with them
  /// while they are written: synchronize with an operation of the group.
  void weights_changed();
  /// Frees the memory of parameters that only layers of other ranks have. They have no values during the
  /// lifetime of the pipeline: a use is an InvalidArgument that names the parameter. Without this call they
  /// get their former values when the pipeline ends.
  void free_other_stages();
  /// Layers [first, last) of each stage.
  struct StageLayers {
    int first = 0, last = 0;
    std::vector<int> ranks;  ///< of the group; several where the stage is replicated, or held for both ways
  };
  const std::vector<StageLayers>& stages() const;
  /// Whether a parameter belongs to stages on several ranks.
  bool shares_parameters() const;
  bool has_first_stage() const;
  bool has_last_stage() const;

  /// Actions of every rank in a step, with all transfers.
  const schedule::Program& program() const;
  /// Micro-batches whose activations this rank held at the same time, at most, in the last step.
  int peak_live_microbatches() const;
  /// Operators of this rank's stages whose weight gradients cannot be left to the action W: it was the action
  /// I that computed them, in steps so far. Sorted.
  std::vector<std::string> unsplit() const;
  /// Bytes that this rank has sent to other stages in steps so far; without evaluate().
  std::int64_t sent_bytes() const;
  /// Seconds for which this rank has waited for others in steps so far, reductions included.
  double waited_s() const;

 private:
  UnreadLoss advance_updates(int num_updates, std::uint64_t number);

  PipelineOptions options_;
  schedule::Transport transport_;
  int num_ranks_;
  std::uint64_t num_steps_ = 0;  ///< done by step()
  int num_updates_ = 0;          ///< of the stream
  int updates_of_round_ = 1;     ///< of this rank
  bool under_way_ = false;       ///< a stream is
  bool left_in_the_middle_ = false;
  comm::Group group_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace trireme::parallel
