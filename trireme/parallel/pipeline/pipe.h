#pragma once
// A torch::nn::Sequential in a pipeline, used like the module itself: PyTorch's Pipe (GPipe, arXiv
// 1811.06965) on the devices of one rank, and parallel::Pipeline over several ranks.
//
//   parallel::Pipe pipe(*context, chain, {.chunks = 8});
//   torch::optim::SGD optimizer(pipe.parameters(), 0.05);
//   ...
//   optimizer.zero_grad();
//   const double loss = pipe.step(input, target, torch::mse_loss);
//   optimizer.step();
//
// `chunks` is the number of micro-batches, not their size. On one rank forward() also trains: its output has
// the history of autograd. Over ranks autograd does not go from process to process: step() trains, forward()
// evaluates. Collective: every rank makes it from the same chain and calls the same methods with batches of
// the same shape. One thread.

#include <torch/nn/modules/container/sequential.h>

#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/data/deferred_batch_norm.h"
#include "trireme/parallel/pipeline/pipeline.h"

namespace trireme::parallel {

struct PipeOptions {
  int chunks = 1;                 ///< micro-batches of a batch; forward() takes fewer of a smaller batch
  std::string schedule = "1f1b";  ///< of step(), over ranks and on one device: a synchronous one
  bool recompute = false;         ///< activation checkpointing: keeps the inputs of layers, or of stages
  /// Running statistics of batch norms are those of the whole batch: convert_deferred_batchnorm() of the
  /// chain.
  bool deferred_batch_norm = false;
  /// On one rank: a stage for each, which computes there, cut by numbers of parameters; step() keeps the
  /// activations of the whole batch. Empty: Context::device(), of every rank.
  std::vector<c10::Device> devices = {};
};

class Pipe {
 public:
  /// Each child of the chain maps one tensor to one tensor. Takes parameters and buffers to the devices, in
  /// place. The context outlives it. Throws InvalidArgument: chunks below 1; several devices with several
  /// ranks; more stages than children; a parameter of children on different devices.
  Pipe(comm::Context& context, const torch::nn::Sequential& chain, const PipeOptions& options = {});
  ~Pipe();
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  /// input (batch, ...) -> the output of the chain (batch, ...), on every rank, on the device of the last
  /// stage. On one rank as the module computes it, in its mode, with gradients where autograd is on. Over
  /// ranks in evaluation mode without gradients; the output is broadcast from the rank of the last stage.
  at::Tensor forward(const at::Tensor& input);
  at::Tensor operator()(const at::Tensor& input) { return forward(input); }

  /// Forward and backward of a batch, as Pipeline::step(): adds the gradients of the mean loss to those that
  /// are there, and returns it on every rank. `loss` gets output and target, and returns a mean over samples.
  double step(const at::Tensor& input, const at::Tensor& target, const Pipeline::Loss& loss);

  /// Of this rank's stages, by the names in the chain ("0.weight"); those of all ranks together are the
  /// chain's, each once. A rank whose stages have none has none.
  optim::NamedTensors named_parameters() const;
  /// The same without names, for libtorch's optimizers.
  std::vector<at::Tensor> parameters() const;
  void zero_grad();
  /// For train::pipeline_loop(), clip_grad_norm() and counters. Throws InvalidArgument on several devices of
  /// one rank, where the chain holds all parameters.
  Pipeline& pipeline();

 private:
  struct Here;  ///< stages of one rank
  at::Tensor forward_over_ranks(const at::Tensor& input);

  /// Batch norms that defer their statistics begin with a batch of so many micro-batches.
  void begin_batch(std::int64_t chunks);

  comm::Context& context_;
  const int chunks_;
  std::vector<std::shared_ptr<DeferredBatchNormImpl>> norms_;
  std::unique_ptr<Here> here_;          ///< of one rank
  std::unique_ptr<Pipeline> pipeline_;  ///< null: several devices of one rank
};

}  // namespace trireme::parallel
