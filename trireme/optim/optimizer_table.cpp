#include <ATen/ops/full.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/optim/adagrad.h"
#include "trireme/optim/adam.h"
#include "trireme/optim/grouped_optimizer.h"
#include "trireme/optim/lamb.h"
#include "trireme/optim/lars.h"
#include "trireme/optim/lion.h"
#include "trireme/optim/muon.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/rmsprop.h"
#include "trireme/optim/sgd.h"

namespace trireme::optim {
namespace {

template <class Rule, auto... arguments>
std::unique_ptr<Optimizer> make(const OptimizerOptions& options, NamedTensors parameters,
                                const Surroundings& surroundings) {
  return std::make_unique<GroupedOptimizer>(std::make_unique<Rule>(options, arguments...), options,
                                            std::move(parameters), surroundings);
}

/// Defaults of settings that are not given. PyTorch's optimizers have its defaults (torch/optim, 2.11 to
/// 2.15).
struct Defaults {
  double lr = 1e-3, weight_decay = 0, momentum = 0;
  bool nesterov = false;
  double beta2 = 0.999, eps = 1e-8;
};

struct OptimizerRow {
  std::string_view name;
  std::unique_ptr<Optimizer> (*make)(const OptimizerOptions&, NamedTensors, const Surroundings&);
  bool normalises = true;      ///< divides gradients by their own magnitude
  bool whole_tensors = false;  ///< computes with norms or products of whole tensors
  Defaults defaults = {};
};

constexpr std::array<OptimizerRow, 9> kOptimizerTable = {{
    {.name = "sgd", .make = make<Sgd>, .normalises = false},
    {.name = "adamw", .make = make<Adam, Adam::WeightDecay::kDecoupled>, .defaults = {.weight_decay = 1e-2}},
    {.name = "adam", .make = make<Adam, Adam::WeightDecay::kL2>},
    {.name = "adagrad", .make = make<Adagrad>, .defaults = {.lr = 1e-2, .eps = 1e-10}},
    {.name = "rmsprop", .make = make<RmsProp>, .defaults = {.lr = 1e-2}},
    {.name = "lion", .make = make<Lion>, .defaults = {.lr = 1e-4, .beta2 = 0.99}},
    {.name = "lars", .make = make<Lars>, .whole_tensors = true, .defaults = {.lr = 0.1, .momentum = 0.9}},
    {.name = "lamb", .make = make<Lamb>, .whole_tensors = true, .defaults = {.eps = 1e-6}},
    {.name = "muon",
     .make = make_muon,
     .whole_tensors = true,
     .defaults = {.weight_decay = 0.1, .momentum = 0.95, .nesterov = true}},
}};

const OptimizerRow& find_optimizer(const std::string& name) {
  const auto* row = std::find_if(kOptimizerTable.begin(), kOptimizerTable.end(),
                                 [&](const OptimizerRow& each) { return each.name == name; });
  require(row != kOptimizerTable.end(), "unknown optimizer '", name, "'", suggest(name, optimizer_names()));
  return *row;
}

}  // namespace

OptimizerOptions with_defaults(OptimizerOptions options) {
  const Defaults& defaults = find_optimizer(options.name).defaults;
  options.lr = options.lr.value_or(defaults.lr);
  options.weight_decay = options.weight_decay.value_or(defaults.weight_decay);
  options.momentum = options.momentum.value_or(defaults.momentum);
  options.nesterov = options.nesterov.value_or(defaults.nesterov);
  options.beta2 = options.beta2.value_or(defaults.beta2);
  options.eps = options.eps.value_or(defaults.eps);
  return options;
}

void Optimizer::keep_lr_on(c10::Device device) {
  require(
      can_leave_out(),
      "this optimizer takes its rate from the host alone, and a captured update would keep the rate of the "
      "capture; take sgd, adam or adamw, or do not capture the update");
  lr_there_ = at::full({}, lr_, at::device(device).dtype(at::kFloat));
}

void Optimizer::update_unless(double /*lr*/, const at::Tensor& /*leave_out*/) {
  throw InvalidArgument(
      "this optimizer cannot leave an update out by a number of the device: can_leave_out() is false; "
      "read the number, and call step() or not");
}

void require_learning_rate(double lr) {
  require(std::isfinite(lr) && lr >= 0, "the learning rate is ", lr, "; expected a number of at least 0");
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, NamedTensors parameters,
                                          std::shared_ptr<Offload> offload,
                                          std::shared_ptr<const TensorParts> parts) {
  const OptimizerOptions all = with_defaults(options);
  require_not_negative(all, "lr", *all.lr);
  require_not_negative(all, "weight_decay", *all.weight_decay);
  return find_optimizer(all.name).make(all, std::move(parameters),
                                       {.offload = std::move(offload), .parts = std::move(parts)});
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, NamedTensors parameters,
                                          std::shared_ptr<Offload> offload) {
  return make_optimizer(options, std::move(parameters), std::move(offload), nullptr);
}

bool normalises_gradients(const std::string& name) { return find_optimizer(name).normalises; }

bool needs_whole_tensors(const std::string& name) { return find_optimizer(name).whole_tensors; }

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerRow& row : kOptimizerTable) names.emplace_back(row.name);
  return names;
}

}  // namespace trireme::optim
