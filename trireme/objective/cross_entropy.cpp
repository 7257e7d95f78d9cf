// The negative log-likelihood of the target class. As PyTorch's torch.nn.functional.cross_entropy over the
// last dim of the output, for any number of targets per sample.

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "trireme/base/error.h"
#include "trireme/objective/internal/class_targets.h"
#include "trireme/objective/internal/objectives.h"
#include "trireme/objective/internal/targets.h"

namespace trireme::objective {
namespace {

/// The target value that kernels ignore. It is not a class.
constexpr std::int64_t kLeftOut = -100;

class CrossEntropy : public Measured {
 public:
  CrossEntropy(const ObjectiveOptions& options, const data::DataSource& data, std::vector<Metric> metrics)
      : Measured(std::move(metrics)),
        options_(options),
        targets_({.loss = "a cross entropy", .for_numbers = "set objective.name = \"mean_squared_error\""},
                 data, options.ignored_classes) {
    require(data.targets_per_sample > 0 || !options.ignored_classes.empty(), "samples of data set ",
            data.name,
            " differ in how many targets they have, and the loss, a cross entropy, has to know which of a "
            "batch are padding: name their class in objective.ignored_classes");
    const std::vector<double>& weights = options.class_weights;
    if (weights.empty()) return;
    require(static_cast<std::int64_t>(weights.size()) == targets_.num_classes(),
            "objective.class_weights has ", weights.size(), " numbers, and data set ", data.name, " has ",
            targets_.num_classes(), " classes; expected one for each");
    for (const double weight : weights) weights_.push_back(static_cast<float>(weight));
    weight_ = at::tensor(weights_);
  }

  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) const override {
    const at::Tensor logits = rows_of(output, target);
    return at::cross_entropy_loss(logits, without_ignored(target.flatten()), weight_on(logits.device()),
                                  at::Reduction::Sum, kLeftOut, options_.label_smoothing);
  }

  std::optional<ClassLoss> class_loss() const override {
    if (weight_.defined()) return std::nullopt;
    return ClassLoss{.label_smoothing = options_.label_smoothing,
                     .ignored_classes = options_.ignored_classes};
  }

  double count(const at::Tensor& target) const override {
    if (!counts_by_value()) return static_cast<double>(target.numel());
    const at::Tensor targets = target.contiguous();
    double sum = 0;
    for (std::int64_t i = 0; i < targets.numel(); ++i) {
      const std::int64_t one = targets.const_data_ptr<std::int64_t>()[i];
      if (!targets_.is_ignored(one)) sum += weights_.empty() ? 1 : weights_[static_cast<std::size_t>(one)];
    }
    return sum;
  }
  bool counts_by_value() const override {
    return !options_.ignored_classes.empty() || !options_.class_weights.empty();
  }

  void check_target(const at::Tensor& target, const std::string& who) const override {
    targets_.check_target(target, who);
  }
  void check_output(const at::Tensor& output, const at::Tensor& target) const override {
    targets_.check_output(output, target);
  }
  void check_batch(const data::Example& batch, std::span<const std::int64_t> indices) const override {
    targets_.check_batch(batch, indices);
  }
  std::int64_t num_outputs(const data::DataSource& data) const override { return data.num_classes; }

 private:
  at::Tensor without_ignored(at::Tensor targets) const {
    for (const std::int64_t ignored : options_.ignored_classes)
      targets = targets.masked_fill(targets.eq(ignored), kLeftOut);
    return targets;
  }

  /// Copied once to each device.
  at::Tensor weight_on(c10::Device device) const {
    if (!weight_.defined() || device == weight_.device()) return weight_;
    const std::lock_guard lock(mutex_);
    at::Tensor& there = weight_there_[device];
    if (!there.defined()) there = weight_.to(device);
    return there;
  }

  const ObjectiveOptions options_;
  const ClassTargets targets_;
  std::vector<float> weights_;
  at::Tensor weight_;  ///< undefined: none
  mutable std::mutex mutex_;
  mutable std::unordered_map<c10::Device, at::Tensor> weight_there_;  ///< under the mutex
};

}  // namespace

ObjectivePtr make_cross_entropy(const ObjectiveOptions& options, const Task& task,
                                std::vector<Metric> metrics) {
  return std::make_shared<CrossEntropy>(options, task.data, std::move(metrics));
}

Classes counted_classes(const at::Tensor& output, const at::Tensor& target, const ObjectiveOptions& options) {
  Classes all{rows_of(output, target), target.flatten()};
  if (options.ignored_classes.empty()) return all;
  at::Tensor counts = at::ones_like(all.targets, at::kBool);
  for (const std::int64_t ignored : options.ignored_classes) counts &= all.targets.ne(ignored);
  return {all.logits.index({counts}), all.targets.index({counts})};
}

}  // namespace trireme::objective
