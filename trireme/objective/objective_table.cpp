#include <algorithm>
#include <array>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/objective/internal/objectives.h"

namespace trireme::objective {
namespace {

struct ObjectiveRow {
  std::string_view name;
  ObjectivePtr (*make)(const ObjectiveOptions&, const Task&, std::vector<Metric>);
  TargetKind kind;
  std::string_view metric;  ///< measured where the options name none; empty: none
};

constexpr std::array<ObjectiveRow, 4> kObjectiveTable = {{
    {"binary_cross_entropy", make_binary_cross_entropy, TargetKind::kYesOrNo, "binary_accuracy"},
    {"cross_entropy", make_cross_entropy, TargetKind::kClass, "accuracy"},
    {"mean_squared_error", make_mean_squared_error, TargetKind::kNumber, "mean_absolute_error"},
    {"model", make_model_loss, TargetKind::kAny, ""},
}};

/// The row of an objective, with its options applied.
ObjectiveRow as_configured(ObjectiveRow row, const ObjectiveOptions& options) {
  if (!options.one_hot || row.kind != TargetKind::kNumber) return row;
  return {row.name, make_one_hot_squared_error, TargetKind::kClass, "accuracy"};
}

/// Rejects an option that the objective ignores: a user would expect it to have an effect.
void reject_others_options(const ObjectiveOptions& options) {
  const ObjectiveOptions defaults;
  const auto refuse = [&](bool is_set, const char* key, const char* whose) {
    require(!is_set, "objective.", key, " is of objective.name = \"", whose, "\"; leave it out with \"",
            options.name, "\"");
  };
  if (options.name != "cross_entropy") {
    refuse(options.label_smoothing != defaults.label_smoothing, "label_smoothing", "cross_entropy");
    refuse(!options.ignored_classes.empty(), "ignored_classes", "cross_entropy");
    refuse(!options.class_weights.empty(), "class_weights", "cross_entropy");
  }
  if (options.name != "binary_cross_entropy")
    refuse(options.positive_weight != defaults.positive_weight, "positive_weight", "binary_cross_entropy");
  if (options.name != "mean_squared_error") refuse(options.one_hot, "one_hot", "mean_squared_error");
}

std::vector<Metric> metrics_of(const ObjectiveOptions& options, const ObjectiveRow& row, const Task& task) {
  ObjectiveOptions with_default = options;
  if (options.metrics.empty() && !row.metric.empty()) with_default.metrics.emplace_back(row.metric);
  return make_metrics(with_default, row.kind, task.own_metrics);
}

}  // namespace

ObjectivePtr make_objective(const ObjectiveOptions& options, const Task& task) {
  require(task.data.train != nullptr, "data set ", task.data.name, " has no training data");
  for (const ObjectiveRow& of_name : kObjectiveTable) {
    if (of_name.name != options.name) continue;
    reject_others_options(options);
    const ObjectiveRow row = as_configured(of_name, options);
    return row.make(options, task, metrics_of(options, row, task));
  }
  throw InvalidArgument(
      text("unknown objective '", options.name, "'", suggest(options.name, objective_names())));
}

std::string target_of_objective(const ObjectiveOptions& options) {
  const auto* row = std::ranges::find(kObjectiveTable, std::string_view(options.name), &ObjectiveRow::name);
  if (row == kObjectiveTable.end() || row->kind == TargetKind::kAny) return "auto";
  return as_configured(*row, options).kind == TargetKind::kClass ? "class" : "number";
}

std::vector<std::string> objective_names() {
  std::vector<std::string> names;
  for (const ObjectiveRow& row : kObjectiveTable) names.emplace_back(row.name);
  return names;
}

}  // namespace trireme::objective
