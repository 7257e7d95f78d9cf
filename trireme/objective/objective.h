#pragma once
// The interface for tasks: from a model's outputs and the targets of a batch to a loss and metrics. A loss is
// a *sum*, with its divisor, the count. The trainer adds both over micro-batches and ranks and divides once,
// so any split of a batch has the same loss and gradients (ADR 0017). Implementations are immutable and
// thread-safe; loaders check targets from threads of their own.
//
// Functions of outputs and targets exist twice: for one tensor of each, and for all fields (loss_all). A task
// with one of each overrides the first form, others the second, whose default calls the first.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/batch/fields.h"
#include "trireme/data/dataset.h"
#include "trireme/model/model.h"
#include "trireme/objective/metric.h"

namespace trireme::objective {

/// The cross entropy of one target among classes, which count alike.
struct ClassLoss {
  double label_smoothing = 0;
  std::vector<std::int64_t> ignored_classes = {};
};

class Objective {
 public:
  virtual ~Objective() = default;

  /// The sum of the losses of a micro-batch: a f32 tensor without dims. `output` is the model's, in any
  /// floating-point type, with a first dim of samples.
  virtual at::Tensor loss(const at::Tensor& output, const at::Tensor& target) const;
  virtual at::Tensor loss_all(const Fields& outputs, const Fields& targets) const;
  /// The divisor of that sum for the mean: targets, elements, or the sum of their weights. Default: samples.
  virtual double count(const at::Tensor& target) const;
  virtual double count_all(const data::Example& batch) const;
  /// Whether the count depends on more than the number of samples, on the values of targets or on sizes that
  /// vary: then ranks add it up in each step.
  virtual bool counts_by_value() const { return false; }
  /// The loss as a function of single classes, for callers that have the logits of some classes alone; none:
  /// it is no such function.
  virtual std::optional<ClassLoss> class_loss() const { return std::nullopt; }
  /// Measured in evaluations; "loss" comes by itself.
  virtual const std::vector<Metric>& metrics() const;

  /// Throws InvalidArgument, with the value found and the expected one, when the loss cannot take a target
  /// like this one of sample 0; `who` names the data. Called before the first step.
  virtual void check_target(const at::Tensor& target, const std::string& who) const;
  virtual void check_targets(const Fields& targets, const std::string& who) const;
  /// Throws InvalidArgument when the loss cannot take the output of a batch next to its targets.
  virtual void check_output(const at::Tensor& output, const at::Tensor& target) const;
  virtual void check_outputs(const Fields& outputs, const Fields& targets) const;
  /// Throws DataError, which names the sample, when a target of a batch that was read is invalid: kernels
  /// report it late, or not at all. Default: a row of every field for each sample.
  virtual void check_batch(const data::Example& batch, std::span<const std::int64_t> indices) const;
  /// Numbers that a shipped model is to make of a sample, or of each token of a text.
  virtual std::int64_t num_outputs(const data::DataSource& data) const;
};

/// The table [objective] of a configuration; make_objective() takes it.
struct ObjectiveOptions {
  std::string name = "cross_entropy";
  std::vector<std::string> metrics = {};           ///< names of metric_names(); empty: the objective's own
  std::int64_t top_k = 5;                          ///< metric top_k: how many guesses
  double label_smoothing = 0;                      ///< cross_entropy: share spread over all classes
  std::vector<std::int64_t> ignored_classes = {};  ///< cross_entropy: targets that do not count
  std::vector<double> class_weights = {};          ///< cross_entropy: one for each class; empty: all alike
  double positive_weight = 1;                      ///< binary_cross_entropy: of the targets that are 1
  /// mean_squared_error: targets are classes, and the loss compares a row of outputs with a row that is 1 at
  /// the class and 0 elsewhere. The mean is one over targets x classes.
  bool one_hot = false;
};

/// Input of a maker of objectives.
struct Task {
  const data::DataSource& data;
  model::Model* model = nullptr;         ///< outlives the objective; null while only data are checked
  std::vector<Metric> own_metrics = {};  ///< that objective.metrics may name besides metric_names()
};

/// One row per objective in objective_table.cpp: "cross_entropy", "mean_squared_error",
/// "binary_cross_entropy", "model" (Model::loss). Throws InvalidArgument: an unknown name or metric (nearest
/// one named), an option that the objective does not take, data that it cannot be made for.
std::shared_ptr<const Objective> make_objective(const ObjectiveOptions& options, const Task& task);
std::vector<std::string> objective_names();
/// The targets of an objective, as data.target has them: "class", "number", or "auto" for either. An
/// objective that is not in the table: "auto".
std::string target_of_objective(const ObjectiveOptions& options);

}  // namespace trireme::objective
