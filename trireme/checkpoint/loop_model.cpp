#include "trireme/checkpoint/loop_model.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

#include "trireme/base/error.h"
#include "trireme/checkpoint/module_state.h"
#include "trireme/optim/wrapped_parameter.h"

namespace trireme::checkpoint {
namespace {

std::string of_optimizer(std::size_t number) { return text(number, "/"); }

void add(TensorMap& to, const std::string& prefix, const TensorMap& tensors) {
  for (const auto& [name, tensor] : tensors) to.emplace(prefix + name, tensor);
}

/// For modules that are equal on all ranks. Of one in a Pipeline or FullyShardedDataParallel, this rank has
/// only a part.
class ReplicatedWeights final : public LoopWeights {
 public:
  explicit ReplicatedWeights(torch::nn::Module& module) : module_(module) {}

  void check() const override {
    for (const auto& item : module_.named_parameters()) {
      const auto wrapper = optim::wrapper_of(item.value());
      require(wrapper == nullptr, "the module to save has a parameter '", item.key(), "' that belongs to a ",
              wrapper ? wrapper->name : "", ", of which this rank has a part: the rest of the module is not ",
              "what was trained; give LoopCheckpoints train::sharded_loop(sharded, optimizer) of a ",
              "FullyShardedDataParallel, or train::pipeline_loop(pipeline, optimizer) of a Pipeline");
    }
  }
  optim::NamedTensors parameters() const override { return named(module_.named_parameters()); }
  optim::NamedTensors buffers() const override { return named(module_.named_buffers()); }

 private:
  static optim::NamedTensors named(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
    optim::NamedTensors result;
    for (const auto& item : tensors)
      if (item.value().defined()) result.emplace_back(item.key(), item.value());
    return result;
  }

  torch::nn::Module& module_;
};

/// Memory for one tensor of an optimizer's state in the checkpoint. Undefined: this rank has no part of its
/// parameter.
at::Tensor room_of(const std::string& name, const at::Tensor& held, const LoopWeights& weights,
                   const std::map<std::string, at::Tensor>& parameters) {
  const std::size_t slash = name.find('/');
  const std::string field = name.substr(0, slash);
  const at::TensorOptions options(held.scalar_type());
  if (slash == std::string::npos || field == "lr") return at::empty(held.sizes(), options);
  const auto parameter = parameters.find(name.substr(slash + 1));
  if (parameter == parameters.end()) return {};
  if (field == "step") return at::empty(held.sizes(), options);  // numbers on the host
  return at::empty(weights.own_sizes(parameter->first, held.sizes()),
                   options.device(parameter->second.device()));
}

}  // namespace

LoopModel::LoopModel(std::shared_ptr<LoopWeights> weights, std::vector<torch::optim::Optimizer*> optimizers)
    : weights_(std::move(weights)), optimizers_(std::move(optimizers)) {
  weights_->check();
}

LoopModel::LoopModel(std::shared_ptr<LoopWeights> weights, optim::Optimizer& optimizer)
    : weights_(std::move(weights)), own_(&optimizer) {
  weights_->check();
}

Shards LoopModel::weights() const {
  weights_->check();
  TensorMap tensors;
  std::set<std::string> buffers;
  for (const auto& [name, parameter] : weights_->parameters()) tensors.emplace(name, parameter.detach());
  for (const auto& [name, buffer] : weights_->buffers()) {
    if (tensors.emplace(name, buffer.detach()).second) buffers.insert(name);
  }
  Shards shards = weights_->shards_of(tensors);
  for (Shard& shard : shards)
    if (buffers.contains(shard.name)) shard.replicas = Replicas::kFirstCounts;
  return shards;
}

void LoopModel::weights_filled() const { weights_->changed(); }

TensorMap LoopModel::own_state() const {
  TensorMap state;
  for (const auto& [name, tensor] : own_->state()) {
    require(
        !tensor.is_meta(), "the values of '", name, "' of the optimizer are not in memory, where ",
        "checkpoints of a loop find them; make the optimizer without an Offload, or train with a Trainer");
    state.emplace(name, tensor.detach());
  }
  return state;
}

Shards LoopModel::optimizer_state() const {
  weights_->check();
  if (own_ != nullptr) return weights_->shards_of(own_state());
  TensorMap state;
  for (std::size_t i = 0; i < optimizers_.size(); ++i)
    add(state, of_optimizer(i), state_of(weights_->parameters(), *optimizers_[i]));
  return weights_->shards_of(state);
}

Shards LoopModel::room_for(const TensorMap& held, const std::string& source) {
  if (own_ != nullptr) return optimizer_state();
  const optim::NamedTensors parameters = weights_->parameters();
  const std::map<std::string, at::Tensor> by_name(parameters.begin(), parameters.end());
  rooms_.assign(optimizers_.size(), {});
  TensorMap all;
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    bool is_there = false;
    for (const auto& [name, tensor] : held) {
      if (!name.starts_with(of_optimizer(i))) continue;
      is_there = true;
      const std::string rest = name.substr(of_optimizer(i).size());
      if (at::Tensor room = room_of(rest, tensor, *weights_, by_name); room.defined())
        rooms_[i].emplace(rest, std::move(room));
    }
    if (!is_there)
      throw DataError(
          text(source, " holds nothing of this loop's optimizer ", i,
               ": it was saved with fewer of them, or with another kind (of Trireme instead of ",
               "torch::optim, or of a run); restore it with the optimizers that it was saved with"));
    check_fits(parameters, *optimizers_[i], rooms_[i], source);
    add(all, of_optimizer(i), rooms_[i]);
  }
  return weights_->shards_of(all);
}

void LoopModel::state_filled(const std::string& source) {
  if (own_ != nullptr) return own_->restored();
  for (std::size_t i = 0; i < optimizers_.size(); ++i)
    restore(weights_->parameters(), *optimizers_[i], rooms_.at(i), source);
  rooms_.clear();
}

LoopModel replicated_loop(torch::nn::Module& module, std::vector<torch::optim::Optimizer*> optimizers) {
  return LoopModel(std::make_shared<ReplicatedWeights>(module), std::move(optimizers));
}

LoopModel replicated_loop(torch::nn::Module& module, optim::Optimizer& optimizer) {
  return {std::make_shared<ReplicatedWeights>(module), optimizer};
}

LoopModels::LoopModels(torch::nn::Module& module, std::vector<torch::optim::Optimizer*> optimizers)
    : LoopModels(replicated_loop(module, std::move(optimizers))) {}

LoopModels::LoopModels(std::initializer_list<std::pair<std::string, LoopModel>> models) {
  require(models.size() > 0, "there is no model to save");
  for (const auto& [name, model] : models) {
    const bool is_word = std::ranges::all_of(
        name, [](unsigned char letter) { return std::isalnum(letter) != 0 || letter == '_'; });
    require(is_word && !name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) == 0,
            "a model to save is called '", name, "'; expected letters, digits and _, no digit first");
    require(by_name_.emplace(name, model).second, "two models to save are called '", name, "'");
  }
}

}  // namespace trireme::checkpoint
