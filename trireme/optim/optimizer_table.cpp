#include <array>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/optim/adamw.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/sgd.h"

namespace trireme::optim {
namespace {

template <class Kind>
std::unique_ptr<Optimizer> make(const OptimizerOptions& options, NamedTensors parameters) {
  return std::make_unique<Kind>(options, std::move(parameters));
}

struct OptimizerRow {
  std::string_view name;
  std::unique_ptr<Optimizer> (*make)(const OptimizerOptions&, NamedTensors);
};

constexpr std::array<OptimizerRow, 2> kOptimizerTable = {{
    {"sgd", make<Sgd>},
    {"adamw", make<AdamW>},
}};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, NamedTensors parameters) {
  require(options.lr >= 0 && std::isfinite(options.lr),
          "the learning rate must not be negative: ", options.lr);
  require(options.weight_decay >= 0 && std::isfinite(options.weight_decay),
          "the weight decay must not be negative: ", options.weight_decay);
  for (const OptimizerRow& row : kOptimizerTable) {
    if (row.name == options.name) return row.make(options, std::move(parameters));
  }
  throw InvalidArgument(
      text("unknown optimizer '", options.name, "'", suggest(options.name, optimizer_names())));
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerRow& row : kOptimizerTable) names.emplace_back(row.name);
  return names;
}

}  // namespace trireme::optim
