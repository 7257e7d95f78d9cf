#include "trireme/ps/optimizer.h"

#include <array>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/ps/internal/optimizer_rules.h"

namespace trireme::ps {
namespace {

/// Defaults of options that are not given. Rules of PyTorch have PyTorch's defaults (torch/optim, 2.11 to
/// 2.15).
struct Defaults {
  double lr = 1e-3, weight_decay = 0, eps = 1e-8;
};

struct NamedRule {
  std::string_view name;
  const OptimizerRule& (*rule)();
  Defaults defaults = {};
};

constexpr std::array kRules = {
    NamedRule{"sum", sum_rule, {.lr = 1}},
    NamedRule{"sgd", sgd_rule},
    NamedRule{"adagrad", adagrad_rule, {.lr = 1e-2, .eps = 1e-10}},
    NamedRule{"rowwise_adagrad", rowwise_adagrad_rule, {.lr = 1e-2, .eps = 1e-10}},
    NamedRule{"adam", adam_rule},
    NamedRule{"adamw", adamw_rule, {.weight_decay = 1e-2}},
    NamedRule{"rmsprop", rmsprop_rule, {.lr = 1e-2}},
    NamedRule{"ftrl", ftrl_rule},
    NamedRule{"lamb", lamb_rule, {.eps = 1e-6}},
};

const NamedRule& find_rule(std::string_view name) {
  for (const NamedRule& row : kRules) {
    if (row.name == name) return row;
  }
  throw InvalidArgument(text("there is no optimizer '", name, "'", suggest(name, optimizer_rule_names())));
}

}  // namespace

const OptimizerRule& optimizer_rule(std::string_view name) { return find_rule(name).rule(); }

OptimizerSpec with_defaults(OptimizerSpec spec) {
  const Defaults& defaults = find_rule(spec.name).defaults;
  const auto fill_in = [](double& option, double value) {
    if (option == kOptimizerDefault) option = value;
  };
  fill_in(spec.lr, defaults.lr);
  fill_in(spec.weight_decay, defaults.weight_decay);
  fill_in(spec.eps, defaults.eps);
  return spec;
}

std::vector<std::string> optimizer_rule_names() {
  std::vector<std::string> names;
  for (const NamedRule& row : kRules) names.emplace_back(row.name);
  return names;
}

void check(const OptimizerSpec& given) {
  const OptimizerSpec spec = with_defaults(given);
  const auto demand = [&](bool holds, const char* option, const char* range, double value) {
    require(holds, "the ", option, " of ", spec.name, " must be ", range, ", not ", value);
  };
  const auto fraction = [&](const char* option, double value) {
    demand(value >= 0 && value < 1, option, "in [0, 1)", value);
  };
  const auto not_negative = [&](const char* option, double value) {
    demand(value >= 0 && std::isfinite(value), option, "a number of at least 0", value);
  };
  demand(spec.lr > 0 && std::isfinite(spec.lr), "lr", "a number above 0", spec.lr);
  demand(spec.eps > 0 && std::isfinite(spec.eps), "eps", "a number above 0", spec.eps);
  demand(spec.lr_power <= 0 && std::isfinite(spec.lr_power), "lr_power", "a number of at most 0",
         spec.lr_power);
  fraction("momentum", spec.momentum);
  fraction("beta1", spec.beta1);
  fraction("beta2", spec.beta2);
  fraction("alpha", spec.alpha);
  not_negative("weight_decay", spec.weight_decay);
  not_negative("l1", spec.l1);
  not_negative("l2", spec.l2);
  not_negative("first_sum", spec.first_sum);
}

}  // namespace trireme::ps
