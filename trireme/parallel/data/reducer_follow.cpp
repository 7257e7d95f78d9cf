// A module that changes after its DistributedDataParallel was made. Changes of requires_grad take effect with
// the next synchronised pass, on all ranks in the same one. Other changes are rejected, with the name of the
// parameter. Otherwise its replicas, its optimizer state and the hook's state might differ between ranks.
#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/comm/dtype.h"
#include "trireme/parallel/data/gradient_hook.h"
#include "trireme/parallel/data/internal/reducer.h"

namespace trireme::parallel {
namespace {

const char* const kMakeAnew =
    "; change the module before DistributedDataParallel is made, or destroy it and make a new one after the "
    "change";

/// Throws for the first difference between the module's parameters now and before.
[[noreturn]] void reject_other_parameters(const torch::nn::Module& module,
                                          const optim::NamedTensors& before) {
  const auto now = module.named_parameters();
  const auto is_named = [](const std::string& name) {
    return [&name](const auto& known) { return known.first == name; };
  };
  for (const auto& item : now) {
    const auto known = std::ranges::find_if(before, is_named(item.key()));
    if (known == before.end()) {
      throw InvalidArgument(text("parameter '", item.key(),
                                 "' was registered after DistributedDataParallel was made, and its gradient "
                                 "is not reduced",
                                 kMakeAnew));
    }
    if (!known->second.is_same(item.value())) {
      throw InvalidArgument(text("parameter '", item.key(),
                                 "' was replaced by another tensor after DistributedDataParallel was made, "
                                 "whose gradient is not reduced",
                                 kMakeAnew));
    }
  }
  for (const auto& [name, tensor] : before) {
    if (!now.contains(name)) {
      throw InvalidArgument(text("parameter '", name,
                                 "' was removed from the module after DistributedDataParallel was made",
                                 kMakeAnew));
    }
  }
  throw InvalidArgument(
      text("the module's parameters have another order than when DistributedDataParallel "
           "was made",
           kMakeAnew));
}

}  // namespace

void DistributedDataParallel::Reducer::require_same_parameters() const {
  if (!module) return;
  const auto now = module->parameters();
  const auto same = [](const at::Tensor& tensor, const auto& known) { return tensor.is_same(known.second); };
  if (!std::ranges::equal(now, replica.parameters, same))
    reject_other_parameters(*module, replica.parameters);
}

void DistributedDataParallel::Reducer::check_module() const {
  if (group.size() == 1) return;
  require_same_parameters();
  for (const Parameter& parameter : parameters_) {
    const at::Tensor& tensor = parameter.tensor;
    if (parameter.learns && !parameter.form.fits(tensor)) {
      throw InvalidArgument(text("parameter '", parameter.name, "' is ", ParameterForm::of(tensor).describe(),
                                 ", and was ", parameter.form.describe(),
                                 " when DistributedDataParallel was made", kMakeAnew));
    }
    require(
        tensor.requires_grad() || !keeps_gradient(parameter), "parameter '", parameter.name,
        "' was frozen after a backward pass under no_sync(), whose gradient is not reduced yet; freeze it "
        "before the first backward pass of a step, or zero its gradient");
  }
}

bool DistributedDataParallel::Reducer::requires_other_gradients() const {
  return std::ranges::any_of(
      parameters_, [](const Parameter& each) { return each.learns != each.tensor.requires_grad(); });
}

bool DistributedDataParallel::Reducer::has_other_buffers() const {
  return !std::ranges::equal(
      forms_of_buffers_, replica.buffers,
      [](const ParameterForm& form, const auto& item) { return form.fits(item.second); });
}

/// Called at the start of a pass, before any operation of it. Collective if the module has changed.
void DistributedDataParallel::Reducer::follow_module() {
  const bool other_gradients = requires_other_gradients();
  if (!other_gradients && !has_other_buffers()) return;
  check_replicas(group, replica, options,
                 "freeze, unfreeze or convert on every rank before the same backward pass");
  build_buffers();
  if (!other_gradients) return;
  optim::NamedTensors added;
  for (const Parameter& parameter : parameters_) {
    if (parameter.tensor.requires_grad() && !parameter.is_prepared)
      added.emplace_back(parameter.name, parameter.tensor);
  }
  if (!added.empty()) options.hook->prepare(group, added);
  for (std::size_t i = 0; i < parameters_.size(); ++i) set_learning(i, parameters_[i].tensor.requires_grad());
  require(std::ranges::any_of(parameters_, &Parameter::learns),
          "no parameter of the module requires a gradient any more, and a backward pass has brought one: "
          "freeze parameters before forward, not between forward and backward");
  if (made_in_place_) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) made_in_place_->moved(i);
  }
  lay_out_anew();
  usage_known_ = false;
  silent_.clear();
  ready_order_.clear();
  statistics.rebuilt = false;
}

void DistributedDataParallel::Reducer::set_learning(std::size_t number, bool learns) {
  Parameter& parameter = parameters_[number];
  if (parameter.learns == learns) return;
  parameter.learns = learns;
  if (learns) {
    parameter.form = ParameterForm::of(parameter.tensor);
    parameter.is_prepared = true;
  } else {
    leave_bucket(parameter);
  }
  hook_up(number);
}

/// The hook may be running, so it is reused and not replaced.
void DistributedDataParallel::Reducer::hook_up(std::size_t number) {
  Parameter& parameter = parameters_[number];
  if (let_hook_yield(parameter.tensor, parameter.hook, !parameter.learns)) return;
  const auto on_it = [weak = weak_from_this(), number] {
    if (const auto reducer = weak.lock()) reducer->on_gradient(number);
  };
  parameter.hook = parameter.learns ? hook_gradient(parameter.tensor, parameter.name, on_it)
                                    : hook_gradient_if_free(parameter.tensor, on_it);
}

/// Under no_sync: a gradient of a parameter that the next synchronised pass will include.
void DistributedDataParallel::Reducer::take_early_gradient(std::size_t number) {
  Parameter& parameter = parameters_[number];
  require(!synchronise, "parameter '", parameter.name,
          "' got a gradient, and was frozen between forward and backward; freeze parameters before forward");
  parameter.used = true;
}

}  // namespace trireme::parallel
