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

struct OptimizerRow {
  std::string_view name;
  std::unique_ptr<Optimizer> (*make)(const OptimizerOptions&, NamedTensors, const Surroundings&);
  bool normalises = true;      ///< gradients, by their own size
  bool whole_tensors = false;  ///< are looked at
};

constexpr std::array<OptimizerRow, 9> kOptimizerTable = {{
    {"sgd", make<Sgd>, /*normalises=*/false},
    {"adamw", make<Adam, Adam::WeightDecay::kDecoupled>},
    {"adam", make<Adam, Adam::WeightDecay::kL2>},
    {"adagrad", make<Adagrad>},
    {"rmsprop", make<RmsProp>},
    {"lion", make<Lion>},
    {"lars", make<Lars>, /*normalises=*/true, /*whole_tensors=*/true},
    {"lamb", make<Lamb>, /*normalises=*/true, /*whole_tensors=*/true},
    {"muon", make_muon, /*normalises=*/true, /*whole_tensors=*/true},
}};

const OptimizerRow& find_optimizer(const std::string& name) {
  const auto* row = std::find_if(kOptimizerTable.begin(), kOptimizerTable.end(),
                                 [&](const OptimizerRow& each) { return each.name == name; });
  require(row != kOptimizerTable.end(), "unknown optimizer '", name, "'", suggest(name, optimizer_names()));
  return *row;
}

}  // namespace

void require_learning_rate(double lr) {
  require(std::isfinite(lr) && lr >= 0, "the learning rate is ", lr, "; expected a number of at least 0");
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, NamedTensors parameters,
                                          std::shared_ptr<Offload> offload,
                                          std::shared_ptr<const TensorParts> parts) {
  const OptimizerRow& row = find_optimizer(options.name);
  require_not_negative(options, "lr", options.lr);
  require_not_negative(options, "weight_decay", options.weight_decay);
  return row.make(options, std::move(parameters), {.offload = std::move(offload), .parts = std::move(parts)});
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
