#include "trireme/checkpoint/module_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <set>

#include "trireme/base/error.h"
#include "trireme/checkpoint/tensor_match.h"

namespace trireme::checkpoint {
namespace {

namespace optim = torch::optim;

/// Calls `visit(name, value)` for each value of a parameter's optimizer state: tensors and whole numbers.
template <class Visit>
void visit_fields(optim::SGDParamState& state, Visit& visit) {
  visit("momentum_buffer", state.momentum_buffer());
}

template <class Adam, class Visit>
void visit_adam(Adam& state, Visit& visit) {
  visit("step", state.step());
  visit("exp_avg", state.exp_avg());
  visit("exp_avg_sq", state.exp_avg_sq());
  visit("max_exp_avg_sq", state.max_exp_avg_sq());
}

template <class Visit>
void visit_fields(optim::AdamParamState& state, Visit& visit) {
  visit_adam(state, visit);
}

template <class Visit>
void visit_fields(optim::AdamWParamState& state, Visit& visit) {
  visit_adam(state, visit);
}

template <class Visit>
void visit_fields(optim::RMSpropParamState& state, Visit& visit) {
  visit("step", state.step());
  visit("square_avg", state.square_avg());
  visit("momentum_buffer", state.momentum_buffer());
  visit("grad_avg", state.grad_avg());
}

template <class Visit>
void visit_fields(optim::AdagradParamState& state, Visit& visit) {
  visit("step", state.step());
  visit("sum", state.sum());
}

/// Calls `use` with a fresh state of the optimizer's type.
template <class Use>
void with_state_type(optim::Optimizer& optimizer, Use&& use) {
  if (dynamic_cast<optim::SGD*>(&optimizer) != nullptr) return use(optim::SGDParamState());
  if (dynamic_cast<optim::Adam*>(&optimizer) != nullptr) return use(optim::AdamParamState());
  if (dynamic_cast<optim::AdamW*>(&optimizer) != nullptr) return use(optim::AdamWParamState());
  if (dynamic_cast<optim::RMSprop*>(&optimizer) != nullptr) return use(optim::RMSpropParamState());
  if (dynamic_cast<optim::Adagrad*>(&optimizer) != nullptr) return use(optim::AdagradParamState());
  throw InvalidArgument(
      "checkpoints know the state of torch::optim's SGD, Adam, AdamW, RMSprop and Adagrad, and this "
      "optimizer "
      "is none of them; give its tensors by name (LoopOptions::others)");
}

/// The optimizer's parameters under their names.
trireme::optim::NamedTensors parameters_of(const trireme::optim::NamedTensors& parameters,
                                           optim::Optimizer& optimizer) {
  std::map<const void*, std::string> names;
  for (const auto& [name, parameter] : parameters) names.emplace(parameter.unsafeGetTensorImpl(), name);
  trireme::optim::NamedTensors found;
  for (const optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto name = names.find(parameter.unsafeGetTensorImpl());
      require(name != names.end(), "the optimizer has a parameter of ", parameter.numel(),
              " elements that is not the model's; expected an optimizer of the parameters that it is saved ",
              "with: of one module that holds all of them, or of parameters() of a Pipeline or ",
              "FullyShardedDataParallel");
      found.emplace_back(name->second, parameter);
    }
  }
  return found;
}

trireme::optim::NamedTensors parameters_of(const torch::nn::Module& module) {
  trireme::optim::NamedTensors parameters;
  for (const auto& item : module.named_parameters()) parameters.emplace_back(item.key(), item.value());
  return parameters;
}

std::string lr_of_group(std::size_t number) { return text("lr/", number); }

/// Copies a parameter's state into a map.
struct Collect {
  const std::string& parameter;
  TensorMap& into;
  void operator()(const char* field, std::int64_t& value) const {
    into.emplace(text(field, "/", parameter), at::scalar_tensor(value, at::kLong));
  }
  void operator()(const char* field, at::Tensor& value) const {
    if (value.defined()) into.emplace(text(field, "/", parameter), value.detach());
  }
};

/// Reads a parameter's state from a map.
struct Take {
  const std::string& parameter;
  const TensorMap& from;
  std::set<std::string>& taken;
  bool found = false;
  const at::Tensor* look(const char* field) {
    const auto entry = from.find(text(field, "/", parameter));
    if (entry == from.end()) return nullptr;
    taken.insert(entry->first);
    found = true;
    return &entry->second;
  }
  void operator()(const char* field, std::int64_t& value) {
    if (const at::Tensor* stored = look(field)) value = stored->item<std::int64_t>();
  }
  void operator()(const char* field, at::Tensor& value) {
    if (const at::Tensor* stored = look(field)) value = *stored;
  }
};

using StatesOfParameters = std::map<void*, std::unique_ptr<optim::OptimizerParamState>>;

/// The optimizer state in `state`. Throws DataError if the optimizer has no place for an entry.
StatesOfParameters taken_from(const TensorMap& state, const trireme::optim::NamedTensors& parameters,
                              optim::Optimizer& optimizer, const std::string& source) {
  std::set<std::string> taken;
  StatesOfParameters restored;
  with_state_type(optimizer, [&](auto&& fresh) {
    using State = std::decay_t<decltype(fresh)>;
    for (const auto& [name, parameter] : parameters_of(parameters, optimizer)) {
      auto own = std::make_unique<State>();
      Take take{name, state, taken};
      visit_fields(*own, take);
      if (take.found) restored[parameter.unsafeGetTensorImpl()] = std::move(own);
    }
  });
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) taken.insert(lr_of_group(i));
  for (const auto& [name, tensor] : state) {
    if (taken.contains(name)) continue;
    throw DataError(text(source, " holds '", name,
                         "', for which this optimizer has no place: it is of another optimizer or module"));
  }
  return restored;
}

}  // namespace

TensorMap state_of(const torch::nn::Module& module) {
  TensorMap state;
  for (const auto& item : module.named_parameters())
    if (item.value().defined()) state.emplace(item.key(), item.value().detach());
  for (const auto& item : module.named_buffers())
    if (item.value().defined()) state.emplace(item.key(), item.value().detach());
  return state;
}

void restore(torch::nn::Module& module, const TensorMap& state, const std::string& source) {
  const at::NoGradGuard no_grad;
  TensorMap own = state_of(module);
  check_same_tensors(state, own, source);
  for (auto& [name, tensor] : own) tensor.copy_(state.at(name));
}

TensorMap state_of(const torch::nn::Module& module, optim::Optimizer& optimizer) {
  return state_of(parameters_of(module), optimizer);
}

TensorMap state_of(const trireme::optim::NamedTensors& parameters, optim::Optimizer& optimizer) {
  TensorMap result;
  with_state_type(optimizer, [&](auto&& fresh) {
    using State = std::decay_t<decltype(fresh)>;
    for (const auto& [name, parameter] : parameters_of(parameters, optimizer)) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      const Collect collect{name, result};
      visit_fields(static_cast<State&>(*found->second), collect);
    }
  });
  std::size_t number = 0;
  for (const optim::OptimizerParamGroup& group : optimizer.param_groups())
    result.emplace(lr_of_group(number++), at::scalar_tensor(group.options().get_lr(), at::kDouble));
  return result;
}

void restore(const torch::nn::Module& module, optim::Optimizer& optimizer, const TensorMap& state,
             const std::string& source) {
  restore(parameters_of(module), optimizer, state, source);
}

void check_fits(const trireme::optim::NamedTensors& parameters, optim::Optimizer& optimizer,
                const TensorMap& state, const std::string& source) {
  taken_from(state, parameters, optimizer, source);
}

void restore(const trireme::optim::NamedTensors& parameters, optim::Optimizer& optimizer,
             const TensorMap& state, const std::string& source) {
  StatesOfParameters restored = taken_from(state, parameters, optimizer, source);
  optimizer.state().clear();
  for (auto& [parameter, own] : restored) optimizer.state()[parameter] = std::move(own);
  std::size_t number = 0;
  for (optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    const auto lr = state.find(lr_of_group(number++));
    if (lr != state.end()) group.options().set_lr(lr->second.item<double>());
  }
}

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void restore(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace trireme::checkpoint
