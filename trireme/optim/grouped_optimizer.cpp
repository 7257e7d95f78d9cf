#include "trireme/optim/grouped_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace trireme::optim {
namespace {

at::Tensor make_state(StateTensor::Form form, const at::Tensor& parameter) {
  if (form == StateTensor::Form::kCount) return at::zeros({}, parameter.options().dtype(at::kFloat));
  return at::zeros_like(parameter);
}

}  // namespace

GroupedOptimizer::GroupedOptimizer(std::unique_ptr<UpdateRule> rule, const OptimizerOptions& options,
                                   NamedTensors parameters)
    : rule_(std::move(rule)), kinds_(rule_->states()) {
  const GroupSettings common{.weight_decay = options.weight_decay, .adaptive = true};
  if (options.decay_1d) {
    add_group(common, std::move(parameters));
    return;
  }
  const auto first_spared = std::stable_partition(parameters.begin(), parameters.end(),
                                                  [](const auto& item) { return item.second.dim() > 1; });
  add_group(common, {parameters.begin(), first_spared});
  add_group({.weight_decay = 0, .adaptive = false}, {first_spared, parameters.end()});
}

void GroupedOptimizer::add_group(const GroupSettings& settings, NamedTensors parameters) {
  const at::NoGradGuard no_grad;
  Group group{.settings = settings, .parameters = std::move(parameters)};
  for (const StateTensor& kind : kinds_) {
    TensorVector& tensors = group.states.emplace_back();
    for (const auto& [name, parameter] : group.parameters)
      tensors.push_back(make_state(kind.form, parameter));
  }
  groups_.push_back(std::move(group));
}

UpdateLists GroupedOptimizer::lists_of(const Group& group) {
  UpdateLists lists;
  lists.states.resize(group.states.size());
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const at::Tensor& parameter = group.parameters[i].second;
    if (!parameter.grad().defined()) continue;
    lists.values.push_back(parameter);
    lists.gradients.push_back(parameter.grad());
    for (std::size_t s = 0; s < group.states.size(); ++s) lists.states[s].push_back(group.states[s][i]);
  }
  return lists;
}

void GroupedOptimizer::step(double lr) {
  const at::NoGradGuard no_grad;
  for (const Group& group : groups_) {
    UpdateLists lists = lists_of(group);
    if (!lists.values.empty()) rule_->update(lists, group.settings, lr);
  }
}

std::map<std::string, at::Tensor> GroupedOptimizer::state() {
  std::map<std::string, at::Tensor> result;
  for (const Group& group : groups_) {
    for (std::size_t s = 0; s < kinds_.size(); ++s) {
      for (std::size_t i = 0; i < group.parameters.size(); ++i)
        result[kinds_[s].name + "/" + group.parameters[i].first] = group.states[s][i];
    }
  }
  return result;
}

}  // namespace trireme::optim
