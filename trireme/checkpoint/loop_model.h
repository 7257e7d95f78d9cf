#pragma once
// A model and its optimizers, for checkpoints of a custom training loop (loop_checkpoints.h): replicas, or
// weights and optimizer state of which each rank has a part. The saved names are the same for all of them, so
// a loop continues from the checkpoint of another kind of loop: data parallelism from a pipeline, shards from
// replicas, with the same optimizer. Keeps references to its parts. One thread.

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/checkpoint/shard.h"
#include "trireme/optim/optimizer.h"

namespace trireme::checkpoint {

/// The weights of a model that this rank has. Derive from it for a kind of distribution of your own.
class LoopWeights {
 public:
  virtual ~LoopWeights() = default;
  /// Throws InvalidArgument: they cannot be saved or filled now.
  virtual void check() const {}
  /// As optimizers get them, by the names of the whole model.
  virtual optim::NamedTensors parameters() const = 0;
  /// Those of the first rank count for all.
  virtual optim::NamedTensors buffers() const = 0;
  /// Boxes of these tensors in the whole ones. Each tensor is called NAME or PREFIX/NAME after a parameter.
  /// It has the sizes of this rank's part of it, or is the same on all ranks. Shared, not copied.
  virtual Shards shards_of(const TensorMap& tensors) const { return whole_shards(tensors); }
  /// Sizes of this rank's part of a tensor with the sizes of that whole parameter.
  virtual std::vector<std::int64_t> own_sizes(const std::string& /*parameter*/, at::IntArrayRef whole) const {
    return whole.vec();
  }
  /// parameters() and buffers() have other values. Called on all ranks.
  virtual void changed() {}
};

/// The saved state of one model. A value; copies refer to the same.
class LoopModel {
 public:
  /// Optimizers of torch::optim over weights->parameters(): SGD, Adam, AdamW, RMSprop or Adagrad, with their
  /// parameter groups and the rate of each group. None: only weights are saved.
  explicit LoopModel(std::shared_ptr<LoopWeights> weights,
                     std::vector<torch::optim::Optimizer*> optimizers = {});
  /// An optimizer of Trireme, made of weights->parameters(). Its learning rate is no part of its state.
  LoopModel(std::shared_ptr<LoopWeights> weights, optim::Optimizer& optimizer);

  /// Parameters and buffers by name. Passes on the exceptions of LoopWeights::check().
  Shards weights() const;
  /// They have been filled. Called on all ranks.
  void weights_filled() const;
  /// "0/exp_avg/fc1.weight", "0/step/fc1.weight" and "0/lr/0" of the first optimizer of torch::optim;
  /// "exp_avg/fc1.weight" of one of Trireme. Throws InvalidArgument: an optimizer of another type, or of
  /// other parameters, or whose state is not in memory (optim::Offload).
  Shards optimizer_state() const;
  /// Tensors into which a checkpoint is read that holds `held` (by those names, without memory): the present
  /// state of optimizers, or new tensors, which state_filled() gives to them. Throws DataError: it has no
  /// state of an optimizer, or that of another type; `source` names the checkpoint.
  Shards room_for(const TensorMap& held, const std::string& source);
  /// The rooms have their values. Called on all ranks.
  void state_filled(const std::string& source);

 private:
  TensorMap own_state() const;

  std::shared_ptr<LoopWeights> weights_;
  std::vector<torch::optim::Optimizer*> optimizers_;
  optim::Optimizer* own_ = nullptr;  ///< replaces optimizers_
  std::vector<TensorMap> rooms_;     ///< by optimizer; those keep it
};

/// A module that is equal on all ranks, as DistributedDataParallel keeps it. Throws InvalidArgument for one
/// whose parameters a Pipeline or FullyShardedDataParallel has, when it is saved or filled.
LoopModel replicated_loop(torch::nn::Module& module, std::vector<torch::optim::Optimizer*> optimizers = {});
LoopModel replicated_loop(torch::nn::Module& module, optim::Optimizer& optimizer);

/// One model, or several by name.
class LoopModels {
 public:
  LoopModels(LoopModel model)  // NOLINT(google-explicit-constructor)
      : by_name_{{"", std::move(model)}} {}
  /// One, which is replicated_loop() of `module` and `optimizers`.
  // NOLINTNEXTLINE(google-explicit-constructor)
  LoopModels(torch::nn::Module& module, std::vector<torch::optim::Optimizer*> optimizers = {});
  /// Weights of a model called M are saved as M.NAME. Throws InvalidArgument for a name that is not made of
  /// letters, digits and _, begins with a digit, or is there twice.
  LoopModels(std::initializer_list<std::pair<std::string, LoopModel>> models);

  /// One model alone is called "".
  std::map<std::string, LoopModel>& by_name() { return by_name_; }
  const std::map<std::string, LoopModel>& by_name() const { return by_name_; }

 private:
  std::map<std::string, LoopModel> by_name_;  ///< "" alone: one
};

}  // namespace trireme::checkpoint
