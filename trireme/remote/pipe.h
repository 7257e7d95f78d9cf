#pragma once
// A chain of parts of a model on several workers, used like one module. The batch is split into chunks, so
// that the workers compute at the same time (GPipe, arXiv 1811.06965). The backward pass is that of a
// Context. Activations go from part to part, not by way of the caller.
//
//   remote::Pipe pipe(*agent, {make_shard(*agent, "w1", first), make_shard(*agent, "w2", second)},
//                     {.chunks = 4, .checkpoint = PipeCheckpoint::kExceptLast});
//   remote::DistributedOptimizer optimizer(*agent, {.name = "sgd", .lr = 0.05}, pipe.parameters());
//   { remote::Context context(*agent);
//     context.backward({loss(*pipe.forward(x).local_value(), y)});
//     optimizer.step(context); }
//
// `chunks` is the number of micro-batches, not their size.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/remote/autograd.h"
#include "trireme/remote/shard.h"

namespace trireme::remote {

/// Micro-batches whose activations are recomputed in the backward pass (activation checkpointing).
enum class PipeCheckpoint : std::uint8_t { kNever, kExceptLast, kAlways };

/// Cut of a batch, and recomputation in the backward pass.
struct PipeOptions {
  std::int64_t chunks = 1;  ///< micro-batches of a batch; fewer where it has fewer samples
  PipeCheckpoint checkpoint = PipeCheckpoint::kExceptLast;
};

class Pipe {
 public:
  /// The first part gets the input. Throws InvalidArgument: no part, no chunk.
  Pipe(const rpc::Agent& agent, std::vector<rpc::RRef<Shard>> parts, PipeOptions options = {});

  /// input (batch, ...) -> a reference, of this worker, to the output of the last part (batch, ...). In a
  /// Context gradients flow back through it. Throws the exception of a part, CommError that names a worker
  /// that has ended. Do not change the input before.
  rpc::RRef<at::Tensor> forward(const at::Tensor& input) const;
  /// The same parts, used otherwise.
  Pipe with(PipeOptions options) const;
  /// Of all parts, in their order.
  std::vector<rpc::RRef<at::Tensor>> parameters() const;
  /// Their names, in the same order.
  std::vector<std::string> parameter_names() const;
  void train(bool on = true) const;

 private:
  const std::shared_ptr<rpc::AgentCore> core_;
  const std::vector<rpc::RRef<Shard>> parts_;
  const PipeOptions options_;
};

/// The model of make_dist_resnet50().
struct DistResNet50Options {
  std::vector<std::int64_t> input_shape = {3, 128, 128};  ///< (3, height, width)
  std::int64_t num_classes = 1000;
  std::uint64_t seed = 1;
  PipeCheckpoint checkpoint = PipeCheckpoint::kNever;
};

/// ResNet-50 in consecutive parts, one on each worker: "DistResNet50" of PyTorch's tutorial on pipelines over
/// remote calls. `devices`: of each worker, as in ShardOptions. `num_splits`: micro-batches of a batch; the
/// tutorial sometimes calls it their size. Two parts are those of the tutorial, others have about equal
/// numbers of parameters. Throws InvalidArgument: another number of devices than workers, no micro-batch.
Pipe make_dist_resnet50(const rpc::Agent& agent, const std::vector<std::string>& workers,
                        const std::vector<std::string>& devices, std::int64_t num_splits,
                        const DistResNet50Options& options = {});

}  // namespace trireme::remote
