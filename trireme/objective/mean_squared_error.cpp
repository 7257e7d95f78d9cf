// The squared difference of output and target, as PyTorch's torch.nn.functional.mse_loss. The mean is over
// all elements.

#include <ATen/ops/mse_loss.h>

#include <limits>

#include "trireme/base/error.h"
#include "trireme/objective/internal/objectives.h"
#include "trireme/objective/internal/targets.h"

namespace trireme::objective {
namespace {

class MeanSquaredError : public Measured {
 public:
  using Measured::Measured;

  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) const override {
    return at::mse_loss(as_target(output, target), target, at::Reduction::Sum);
  }
  double count(const at::Tensor& target) const override { return static_cast<double>(target.numel()); }

  void check_target(const at::Tensor& target, const std::string& who) const override {
    require(target.scalar_type() == at::kFloat && target.numel() > 0, who, ": the target of sample 0 is ",
            kind_of(target),
            ", and the loss, a mean squared error, takes numbers: expected Float; "
            "set data.target = \"number\", or return at::kFloat from a data set of your own; for classes set "
            "objective.one_hot = true, or objective.name = \"cross_entropy\"");
  }
  void check_output(const at::Tensor& output, const at::Tensor& target) const override {
    check_alike(output, target);
  }
  void check_batch(const data::Example& batch, std::span<const std::int64_t> indices) const override {
    constexpr double kMost = std::numeric_limits<float>::max();
    check_numbers(batch, indices, {.least = -kMost, .most = kMost, .otherwise = "not a finite number"});
  }
  std::int64_t num_outputs(const data::DataSource& data) const override {
    return data.train->trial_batch(1).target->numel();
  }
};

}  // namespace

ObjectivePtr make_mean_squared_error(const ObjectiveOptions&, const Task&, std::vector<Metric> metrics) {
  return std::make_shared<MeanSquaredError>(std::move(metrics));
}

}  // namespace trireme::objective
