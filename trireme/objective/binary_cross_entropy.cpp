// Binary cross entropy, for any number of targets per sample: outputs are logits, targets probabilities. As
// PyTorch's torch.nn.functional.binary_cross_entropy_with_logits; the mean is over all elements.

#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/full.h>

#include "trireme/base/error.h"
#include "trireme/objective/internal/objectives.h"
#include "trireme/objective/internal/targets.h"

namespace trireme::objective {
namespace {

class BinaryCrossEntropy : public Measured {
 public:
  BinaryCrossEntropy(const ObjectiveOptions& options, std::vector<Metric> metrics)
      : Measured(std::move(metrics)) {
    if (options.positive_weight != 1) positive_weight_ = at::full({1}, options.positive_weight, at::kFloat);
  }

  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) const override {
    const at::Tensor weight =
        positive_weight_.defined() ? positive_weight_.to(output.device()) : positive_weight_;
    return at::binary_cross_entropy_with_logits(as_target(output, target), target, {}, weight,
                                                at::Reduction::Sum);
  }
  double count(const at::Tensor& target) const override { return static_cast<double>(target.numel()); }

  void check_target(const at::Tensor& target, const std::string& who) const override {
    require(target.scalar_type() == at::kFloat && target.numel() > 0, who, ": the target of sample 0 is ",
            kind_of(target),
            ", and the loss, a binary cross entropy, takes numbers from 0 (no) to 1 (yes): expected Float; "
            "set data.target = \"number\", or return at::kFloat from a data set of your own; for classes set "
            "objective.name = \"cross_entropy\"");
  }
  void check_output(const at::Tensor& output, const at::Tensor& target) const override {
    check_alike(output, target);
  }
  void check_batch(const data::Example& batch, std::span<const std::int64_t> indices) const override {
    check_numbers(batch, indices, {.least = 0, .most = 1, .otherwise = "outside 0 (no) to 1 (yes)"});
  }
  std::int64_t num_outputs(const data::DataSource& data) const override {
    return data.train->trial_batch(1).target->numel();
  }

 private:
  at::Tensor positive_weight_;  ///< undefined: 1
};

}  // namespace

ObjectivePtr make_binary_cross_entropy(const ObjectiveOptions& options, const Task&,
                                       std::vector<Metric> metrics) {
  return std::make_shared<BinaryCrossEntropy>(options, std::move(metrics));
}

}  // namespace trireme::objective
