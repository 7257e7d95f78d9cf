#pragma once
// A part of a model on one worker, which others call through an RRef: a stage of a Pipe.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trireme/model/model.h"
#include "trireme/remote/tensor_field.h"
#include "trireme/rpc/agent.h"

namespace trireme::remote {

class Shard {
 public:
  /// Each layer maps one tensor to one tensor. `keeps_alive`: objects that the layers use. They move to
  /// `device`, and so does each input. Outputs are there, and are sent to other workers through host memory.
  /// Throws InvalidArgument for layers that take or give more.
  explicit Shard(std::vector<model::Layer> layers, std::shared_ptr<void> keeps_alive = nullptr,
                 c10::Device device = c10::kCPU);

  /// The layers applied to an input on any worker: (batch, ...) -> (batch, ...). One call at a time. If
  /// `after` refers to a value of this worker, the call waits for it, so micro-batches keep their order.
  /// `recomputes`: activations are recomputed in the backward pass (activation checkpointing).
  at::Tensor forward(const rpc::RRef<at::Tensor>& input, const rpc::RRef<at::Tensor>& after, bool recomputes);
  /// Leaves, in the order of the layers; those that are shared, once.
  std::vector<rpc::RRef<at::Tensor>> parameters();
  std::vector<std::string> parameter_names() const;
  void train(bool on);

 private:
  const std::shared_ptr<void> keeps_alive_;
  const c10::Device device_;
  const std::vector<model::Layer> layers_;
  std::vector<model::Layer> recomputed_;
  std::mutex mutex_;  ///< held by the forward that runs
};

/// Part `part` of `parts` of a chain, cut by numbers of parameters: every worker makes the whole chain with
/// the same values and calls this with its part. Parameters keep their names in the chain ("4.weight"), so
/// that those of all parts are the chain's. Throws InvalidArgument: no such part, more parts than children.
std::shared_ptr<Shard> part_of(const torch::nn::Sequential& chain, int part, int parts,
                               c10::Device device = c10::kCPU);

/// A shipped model, and which of its layers.
struct ShardOptions {
  model::ModelOptions model = {};
  std::vector<std::int64_t> input_shape = {};  ///< of a sample
  std::int64_t num_classes = 0;
  std::uint64_t seed = 0;
  std::int64_t first_layer = 0, end_layer = 0;  ///< [first, end) of Model::layers()
  std::string device = "cpu";  ///< of the worker; "cuda:1" is its second one, "auto" a GPU where there is one
};

/// Made on that worker; other layers get no memory there. Parameters have the values of make_model() with the
/// same seed, for any cut.
rpc::RRef<Shard> make_shard(const rpc::Agent& agent, const rpc::Callee& worker, const ShardOptions& options);

}  // namespace trireme::remote
