// The mean squared error of classes: each target is a row that is 1 at its class and 0 elsewhere. PyTorch's
// tutorials train classifiers in this way, with nn.MSELoss on one_hot(labels). The mean is over targets x
// classes.

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/zeros_like.h>

#include "trireme/base/error.h"
#include "trireme/objective/internal/class_targets.h"
#include "trireme/objective/internal/objectives.h"

namespace trireme::objective {
namespace {

class OneHotSquaredError : public Measured {
 public:
  OneHotSquaredError(const data::DataSource& data, std::vector<Metric> metrics)
      : Measured(std::move(metrics)),
        targets_(
            {.loss = "a mean squared error of one-hot targets", .for_numbers = "leave objective.one_hot out"},
            data) {
    require(data.targets_per_sample > 0, "samples of data set ", data.name,
            " differ in how many targets they have, and objective.one_hot counts padding like targets; "
            "expected as many targets in each sample; set objective.name = \"cross_entropy\" with "
            "objective.ignored_classes");
  }

  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) const override {
    const at::Tensor rows = rows_of(output, target);
    // Not one_hot(): that reads the classes on the host, which waits for a device.
    const at::Tensor one_hot = at::zeros_like(rows).scatter_(1, target.reshape({-1, 1}), 1);
    return at::mse_loss(rows, one_hot, at::Reduction::Sum);
  }
  double count(const at::Tensor& target) const override {
    return static_cast<double>(target.numel() * targets_.num_classes());
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
  std::int64_t num_outputs(const data::DataSource&) const override { return targets_.num_classes(); }

 private:
  ClassTargets targets_;
};

}  // namespace

ObjectivePtr make_one_hot_squared_error(const ObjectiveOptions&, const Task& task,
                                        std::vector<Metric> metrics) {
  return std::make_shared<OneHotSquaredError>(task.data, std::move(metrics));
}

}  // namespace trireme::objective
