#include "trireme/optim/grouped_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

namespace trireme::optim {
namespace {

/// Runs begin at whole cache lines for any dtype, so kernels compute the same values as for the whole tensor.
constexpr std::int64_t kRunElements = 64;

/// State that is not offloaded, on the device where the parameter is updated.
at::Tensor make_state(StateTensor::Form form, const at::Tensor& parameter,
                      const std::shared_ptr<Offload>& offload) {
  const at::Device device = offload && offload->has(parameter) ? offload->device() : parameter.device();
  if (form == StateTensor::Form::kNumber) return at::zeros({}, at::TensorOptions(at::kFloat).device(device));
  return at::zeros_like(parameter, parameter.options().device(device).requires_grad(false));
}

at::Tensor run_of(const at::Tensor& tensor, std::int64_t begin, std::int64_t numel) {
  return tensor.contiguous().view({-1}).narrow(0, begin, numel);
}

}  // namespace

GroupedOptimizer::GroupedOptimizer(std::unique_ptr<UpdateRule> rule, const OptimizerOptions& options,
                                   NamedTensors parameters, const Surroundings& surroundings)
    : Optimizer(options.lr.value_or(1e-3)),
      rule_(std::move(rule)),
      kinds_(rule_->states()),
      offload_(surroundings.offload),
      parts_(surroundings.parts) {
  const GroupSettings common{.weight_decay = options.weight_decay.value_or(0), .adaptive = true};
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
  std::vector<TensorVector> states = make_states(parameters);
  groups_.push_back({.settings = settings, .parameters = std::move(parameters), .states = std::move(states)});
}

/// Step counts are a few bytes, so they are not offloaded.
bool GroupedOptimizer::is_elsewhere(const StateTensor& kind) const {
  return offload_ != nullptr && offload_->takes_state() && kind.form == StateTensor::Form::kLikeParameter;
}

std::vector<TensorVector> GroupedOptimizer::make_states(const NamedTensors& parameters) const {
  TensorVector like;  // tensors that are read together are contiguous
  for (const auto& [name, parameter] : parameters) {
    for (const StateTensor& kind : kinds_) {
      if (is_elsewhere(kind)) like.push_back(parameter);
    }
  }
  const TensorVector made = like.empty() ? TensorVector() : offload_->make(Offload::Purpose::kState, like);
  auto next = made.begin();
  std::vector<TensorVector> states(kinds_.size());
  for (const auto& [name, parameter] : parameters) {
    for (std::size_t s = 0; s < kinds_.size(); ++s) {
      states[s].push_back(is_elsewhere(kinds_[s]) ? *next++
                                                  : make_state(kinds_[s].form, parameter, offload_));
    }
  }
  return states;
}

std::optional<UpdateLists> GroupedOptimizer::lists_of(const Group& group) const {
  UpdateLists lists;
  lists.states.resize(group.states.size());
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const at::Tensor& parameter = group.parameters[i].second;
    if (!parameter.grad().defined()) continue;
    add_part_of(lists, group.parameters[i].first);
    lists.values.push_back(parameter);
    lists.gradients.push_back(parameter.grad());
    for (std::size_t s = 0; s < group.states.size(); ++s) lists.states[s].push_back(group.states[s][i]);
  }
  return lists.values.empty() ? std::nullopt : std::optional(std::move(lists));
}

void GroupedOptimizer::add_part_of(UpdateLists& lists, const std::string& parameter) const {
  if (parts_ == nullptr) return;
  lists.others = parts_.get();
  lists.parts.push_back(parts_->part(parameter));
}

/// The offloaded tensors that the update of a parameter reads: state and, if offloaded, the parameter.
TensorVector GroupedOptimizer::offloaded_storage_of(const Group& group, std::size_t parameter) const {
  TensorVector tensors;
  for (std::size_t s = 0; s < kinds_.size(); ++s) {
    if (is_elsewhere(kinds_[s])) tensors.push_back(group.states[s][parameter]);
  }
  const at::Tensor& value = group.parameters[parameter].second;
  if (offload_->has(value)) tensors.push_back(value);
  return tensors;
}

/// A parameter larger than a part is split into several runs, if the rule is element-wise.
std::vector<GroupedOptimizer::Run> GroupedOptimizer::runs_of(const Group& group,
                                                             std::size_t parameter) const {
  const at::Tensor& value = group.parameters[parameter].second;
  std::int64_t bytes_of_element = 0;
  for (const at::Tensor& each : offloaded_storage_of(group, parameter))
    bytes_of_element += static_cast<std::int64_t>(each.element_size());
  if (bytes_of_element == 0) return {{.parameter = parameter}};
  const std::int64_t fit =
      std::max<std::int64_t>(1, offload_->part_bytes() / bytes_of_element / kRunElements) * kRunElements;
  if (!rule_->goes_by_elements() || !value.is_contiguous() || value.numel() <= fit)
    return {{.parameter = parameter}};
  std::vector<Run> runs;
  for (std::int64_t begin = 0; begin < value.numel(); begin += fit) {
    const std::int64_t numel = std::min(fit, value.numel() - begin);
    runs.push_back({.parameter = parameter,
                    .begin = begin,
                    .numel = numel,
                    .is_all = false,
                    .is_last = begin + numel == value.numel()});
  }
  return runs;
}

/// Parameters without a gradient are not updated.
std::vector<GroupedOptimizer::Part> GroupedOptimizer::parts_to_update() const {
  std::vector<Part> parts;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      if (!group.parameters[i].second.grad().defined()) continue;
      const TensorVector tensors = offloaded_storage_of(group, i);
      for (const Run& run : runs_of(group, i)) {
        Offload::Part views;
        std::int64_t of_run = 0;
        for (const at::Tensor& each : tensors) {
          views.push_back(run.is_all ? each.detach() : run_of(each.detach(), run.begin, run.numel));
          of_run += views.back().numel() * static_cast<std::int64_t>(each.element_size());
        }
        const bool follows = !parts.empty() && parts.back().group == g;
        if (!follows || bytes + of_run > offload_->part_bytes()) {
          parts.push_back({.group = g, .runs = {}, .views = {}});
          bytes = 0;
        }
        bytes += of_run;
        parts.back().runs.push_back(run);
        parts.back().views.insert(parts.back().views.end(), views.begin(), views.end());
      }
    }
  }
  return parts;
}

UpdateLists GroupedOptimizer::lists_of(const Part& part, const Offload::Part& brought) const {
  const Group& group = groups_[part.group];
  auto next = brought.begin();
  UpdateLists lists;
  lists.states.resize(kinds_.size());
  for (const Run& run : part.runs) {
    const at::Tensor& parameter = group.parameters[run.parameter].second;
    add_part_of(lists, group.parameters[run.parameter].first);
    const auto in_memory = [&](const at::Tensor& tensor) {
      return run.is_all ? tensor : run_of(tensor, run.begin, run.numel);
    };
    for (std::size_t s = 0; s < kinds_.size(); ++s) {
      const at::Tensor& state = group.states[s][run.parameter];
      if (is_elsewhere(kinds_[s])) {
        lists.states[s].push_back(*next++);
      } else if (kinds_[s].form == StateTensor::Form::kLikeParameter) {
        lists.states[s].push_back(in_memory(state));
      } else {
        lists.states[s].push_back(run.is_last ? state
                                              : state.clone());  // counted once, in the last run
      }
    }
    lists.values.push_back(offload_->has(parameter) ? *next++ : in_memory(parameter));
    lists.gradients.push_back(in_memory(parameter.grad()));
  }
  return lists;
}

bool GroupedOptimizer::passes_in_parts() const {
  if (offload_ == nullptr) return false;
  return std::ranges::any_of(kinds_, [this](const StateTensor& kind) { return is_elsewhere(kind); }) ||
         std::ranges::any_of(groups_, [this](const Group& group) {
           return std::ranges::any_of(group.parameters,
                                      [this](const auto& item) { return offload_->has(item.second); });
         });
}

void GroupedOptimizer::update_unless(double lr, const at::Tensor& leave_out) {
  if (!can_leave_out()) return Optimizer::update_unless(lr, leave_out);
  update_lists(lr, leave_out);
}

void GroupedOptimizer::update_lists(double lr, const std::optional<at::Tensor>& leave_out) {
  const at::NoGradGuard no_grad;
  if (passes_in_parts()) {
    const std::vector<Part> parts = parts_to_update();
    std::vector<Offload::Part> views;
    for (const Part& part : parts) views.push_back(part.views);
    offload_->in_parts(views, [&](std::size_t i, const Offload::Part& brought) {
      UpdateLists lists = lists_of(parts[i], brought);
      lists.leave_out = leave_out;
      if (lr_there().defined()) lists.lr = lr_there();
      rule_->update(lists, groups_[parts[i].group].settings, lr);
    });
    return;
  }
  for (const Group& group : groups_) {
    std::optional<UpdateLists> lists = lists_of(group);
    if (!lists) continue;
    lists->leave_out = leave_out;
    if (lr_there().defined()) lists->lr = lr_there();
    rule_->update(*lists, group.settings, lr);
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
