#pragma once
// Asynchronous pipelines (PipeDream, PipeDream-2BW, 1F1B-RR) in a custom training loop: a Pipeline whose
// stages update themselves, and the optimizer of this rank's stages.
//
//   parallel::AsynchronousTraining training(*context, model::layers_of(chain),
//                                           {.schedule = "pipedream", .num_microbatches = 1},
//                                           optim::OptimizerOptions{.name = "sgd", .lr = 0.05});
//   training.run({.num_microbatches = 1000, .next = microbatch, .loss = mse_loss});
//
// A stage updates as soon as the gradients of an update are there, while other micro-batches are under way,
// and waits for no other stage. Which weights a micro-batch sees: schedule/weight_versions.h. Collective:
// every rank makes it from the same layers and options and runs the same updates. One thread.

#include <functional>
#include <memory>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/model/layer.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/pipeline/pipeline.h"

namespace trireme::parallel {

class AsynchronousTraining {
 public:
  /// Makes the optimizer of a rank from its parameters, which are the newest version of the weights.
  using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const optim::NamedTensors&)>;

  /// `pipeline.num_microbatches`: pipedream: 1; pipedream-2bw: those of an update, at least as many as ranks;
  /// 1f1b-rr: a multiple of the replicas of each stage. Throws InvalidArgument: a schedule that updates at
  /// the end of a step (use Pipeline::step), an `update` in the options, and the exceptions of Pipeline.
  AsynchronousTraining(comm::Context& context, const std::vector<model::Layer>& layers,
                       const PipelineOptions& pipeline, const MakeOptimizer& make_optimizer);
  /// With one of the shipped optimizers.
  AsynchronousTraining(comm::Context& context, const std::vector<model::Layer>& layers,
                       const PipelineOptions& pipeline, const optim::OptimizerOptions& optimizer);
  AsynchronousTraining(const AsynchronousTraining&) = delete;
  AsynchronousTraining& operator=(const AsynchronousTraining&) = delete;

  /// From an empty pipeline to an empty pipeline.
  struct Run {
    int num_microbatches = 1;  ///< of all updates: a multiple of PipelineOptions::num_microbatches
    /// Micro-batch m, from 0 in each run, a function of m alone: a rank may ask for one twice.
    std::function<MicroBatch(int m)> next;
    Pipeline::Loss loss;  ///< a mean over the samples of a micro-batch
    /// Inputs of all sizes that come; empty: all have that of micro-batch 0.
    std::vector<Fields> shapes = {};
    /// Called after each update of this rank, with its number from 1. On ranks with the last stage, `loss` is
    /// the mean loss of the update's micro-batches on this rank; elsewhere 0. Null: nothing.
    std::function<void(int update, double loss)> on_update = nullptr;
  };
  /// Ends when this rank's updates are done: all micro-batches are then in the weights of every stage, which
  /// may be saved and evaluated. An update takes the mean over its micro-batches. Throws InvalidArgument: a
  /// number of micro-batches that is no such multiple; the exceptions of Pipeline::advance().
  void run(const Run& run);

  /// For evaluate(), parameters(), staleness().
  Pipeline& pipeline() { return pipeline_; }
  /// Of this rank, for set_lr() and for saving; in on_update, too.
  optim::Optimizer& optimizer() { return *optimizer_; }

 private:
  PipelineOptions updating(PipelineOptions options);

  std::unique_ptr<optim::Optimizer> optimizer_;
  const int microbatches_;
  Pipeline pipeline_;
  std::uint64_t updates_done_ = 0;
};

}  // namespace trireme::parallel
