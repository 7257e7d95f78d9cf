#pragma once
// The objectives of objective_table.cpp, and their checks of targets that are classes.

#include <memory>
#include <utility>

#include "trireme/objective/objective.h"

namespace trireme::objective {

/// An objective with the metrics that were asked for.
class Measured : public Objective {
 public:
  explicit Measured(std::vector<Metric> metrics) : metrics_(std::move(metrics)) {}
  const std::vector<Metric>& metrics() const override { return metrics_; }

 private:
  std::vector<Metric> metrics_;
};

using ObjectivePtr = std::shared_ptr<const Objective>;

ObjectivePtr make_cross_entropy(const ObjectiveOptions& options, const Task& task,
                                std::vector<Metric> metrics);
ObjectivePtr make_mean_squared_error(const ObjectiveOptions& options, const Task& task,
                                     std::vector<Metric> metrics);
ObjectivePtr make_one_hot_squared_error(const ObjectiveOptions& options, const Task& task,
                                        std::vector<Metric> metrics);
ObjectivePtr make_binary_cross_entropy(const ObjectiveOptions& options, const Task& task,
                                       std::vector<Metric> metrics);
ObjectivePtr make_model_loss(const ObjectiveOptions& options, const Task& task, std::vector<Metric> metrics);

/// Logits and classes of the targets that count: a row (class,) and a row of logits each, f32.
struct Classes {
  at::Tensor logits, targets;
};
Classes counted_classes(const at::Tensor& output, const at::Tensor& target, const ObjectiveOptions& options);

}  // namespace trireme::objective
