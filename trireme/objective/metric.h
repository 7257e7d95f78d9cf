#pragma once
// A measure of a model next to its loss: a sum and a count for each batch. Both are added over all batches of
// all ranks before they are divided, so any split of the data gives the same number. A value; thread-safe.

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/batch/fields.h"

namespace trireme::objective {

struct ObjectiveOptions;

/// A number, or a tensor without dims that holds it, on whichever device: it is read when the last batch has
/// been given to the device, so that none waits for the one before.
struct Value {
  Value(double known = 0) : number(known) {}                   // NOLINT(google-explicit-constructor)
  Value(at::Tensor computed) : tensor(std::move(computed)) {}  // NOLINT(google-explicit-constructor)
  /// Waits for the device.
  double read() const { return tensor.defined() ? tensor.item<double>() : number; }
  double number = 0;
  at::Tensor tensor;  ///< undefined: `number` is it
};

/// Of a batch.
struct Sum {
  Value value;
  double count = 0;  ///< divisor of the value
};

/// Which end of a metric is the good one, for "best" checkpoints and for learning rates that follow it.
enum class Better { kHigher, kLower };

struct Metric {
  std::string name;  ///< reports call it "test_NAME"
  Better better = Better::kHigher;
  /// Without gradients; both are those of one batch. A function of two tensors will do where there is one of
  /// each.
  std::function<Sum(const Fields& outputs, const Fields& targets)> measure;
  std::function<double(double mean)> finish = nullptr;  ///< from the mean to the metric; null: it is the mean
};

/// Kind of a target: decides which metrics make sense.
enum class TargetKind { kClass, kNumber, kYesOrNo, kAny };

/// One row per metric in metric_table.cpp: "accuracy", "top_k", "perplexity" of classes,
/// "mean_absolute_error", "root_mean_squared_error" of numbers, "binary_accuracy" of yes or no. Throws
/// InvalidArgument: an unknown name (nearest one named), or one for targets of another kind.
Metric make_metric(const std::string& name, const ObjectiveOptions& options, TargetKind kind);
std::vector<std::string> metric_names();

/// Those that the options name, of ours and of `own`; none twice. Throws InvalidArgument as make_metric().
std::vector<Metric> make_metrics(const ObjectiveOptions& options, TargetKind kind,
                                 const std::vector<Metric>& own = {});

}  // namespace trireme::objective
