#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/objective/internal/objectives.h"
#include "trireme/objective/internal/targets.h"

namespace trireme::objective {
namespace {

at::Tensor total(const at::Tensor& values) { return values.sum(at::kDouble); }
double size_of(const at::Tensor& tensor) { return static_cast<double>(tensor.numel()); }

Sum accuracy(const at::Tensor& output, const at::Tensor& target, const ObjectiveOptions& options) {
  const Classes classes = counted_classes(output, target, options);
  return {total(classes.logits.argmax(1).eq(classes.targets)), size_of(classes.targets)};
}

Sum top_k(const at::Tensor& output, const at::Tensor& target, const ObjectiveOptions& options) {
  const Classes classes = counted_classes(output, target, options);
  require(options.top_k <= classes.logits.size(1), "objective.top_k = ", options.top_k, " of ",
          classes.logits.size(1), " classes; expected at most as many");
  const at::Tensor guesses = std::get<1>(classes.logits.topk(options.top_k, 1));
  return {total(guesses.eq(classes.targets.unsqueeze(1))), size_of(classes.targets)};
}

Sum log_likelihood(const at::Tensor& output, const at::Tensor& target, const ObjectiveOptions& options) {
  const Classes classes = counted_classes(output, target, options);
  return {total(at::cross_entropy_loss(classes.logits, classes.targets, {}, at::Reduction::None)),
          size_of(classes.targets)};
}

Sum absolute_error(const at::Tensor& output, const at::Tensor& target, const ObjectiveOptions&) {
  return {total((as_target(output, target) - target).abs()), size_of(target)};
}

Sum squared_error(const at::Tensor& output, const at::Tensor& target, const ObjectiveOptions&) {
  return {total(at::mse_loss(as_target(output, target), target, at::Reduction::None)), size_of(target)};
}

Sum binary_accuracy(const at::Tensor& output, const at::Tensor& target, const ObjectiveOptions&) {
  return {total(as_target(output, target).gt(0).eq(target.gt(0.5))), size_of(target)};
}

struct MetricRow {
  std::string_view name;
  TargetKind kind;
  Better better;
  Sum (*measure)(const at::Tensor&, const at::Tensor&, const ObjectiveOptions&);
  double (*finish)(double);
};

constexpr std::array<MetricRow, 6> kMetricTable = {{
    {"accuracy", TargetKind::kClass, Better::kHigher, accuracy, nullptr},
    {"binary_accuracy", TargetKind::kYesOrNo, Better::kHigher, binary_accuracy, nullptr},
    {"mean_absolute_error", TargetKind::kNumber, Better::kLower, absolute_error, nullptr},
    {"perplexity", TargetKind::kClass, Better::kLower, log_likelihood, std::exp},
    {"root_mean_squared_error", TargetKind::kNumber, Better::kLower, squared_error, std::sqrt},
    {"top_k", TargetKind::kClass, Better::kHigher, top_k, nullptr},
}};

std::string names_for(TargetKind kind) {
  std::vector<std::string> names;
  for (const MetricRow& row : kMetricTable) {
    if (row.kind == kind) names.emplace_back(row.name);
  }
  return join(names);
}

}  // namespace

Metric make_metric(const std::string& name, const ObjectiveOptions& options, TargetKind kind) {
  for (const MetricRow& row : kMetricTable) {
    if (row.name != name) continue;
    require(kind == TargetKind::kAny || row.kind == kind, "objective.metrics: \"", name,
            "\" does not measure what objective.name = \"", options.name,
            "\" learns; these do: ", names_for(kind));
    const auto measure = [&row, options](const at::Tensor& output, const at::Tensor& target) {
      return row.measure(output, target, options);
    };
    return {.name = name, .better = row.better, .measure = measure, .finish = row.finish};
  }
  throw InvalidArgument(text("unknown metric '", name, "'", suggest(name, metric_names())));
}

std::vector<Metric> make_metrics(const ObjectiveOptions& options, TargetKind kind,
                                 const std::vector<Metric>& own) {
  std::vector<Metric> metrics;
  for (const std::string& name : options.metrics) {
    for (const Metric& before : metrics)
      require(before.name != name, "objective.metrics names \"", name, "\" twice; leave one out");
    const auto is_it = [&](const Metric& metric) { return metric.name == name; };
    const auto found = std::find_if(own.begin(), own.end(), is_it);
    metrics.push_back(found != own.end() ? *found : make_metric(name, options, kind));
  }
  return metrics;
}

std::vector<std::string> metric_names() {
  std::vector<std::string> names;
  for (const MetricRow& row : kMetricTable) names.emplace_back(row.name);
  return names;
}

}  // namespace trireme::objective
