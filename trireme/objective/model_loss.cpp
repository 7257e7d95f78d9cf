// The loss that the model itself defines, Model::loss. Its mean is over samples.

#include "trireme/base/error.h"
#include "trireme/objective/internal/objectives.h"

namespace trireme::objective {
namespace {

class ModelLoss : public Measured {
 public:
  ModelLoss(model::Model* model, std::vector<Metric> metrics) : Measured(std::move(metrics)), model_(model) {}

  at::Tensor loss_all(const Fields& outputs, const Fields& targets) const override {
    const at::Tensor sum = model_->loss_all(outputs, targets);
    require(sum.dim() == 0 && sum.is_floating_point(), "the loss of the model of type ", model_->name(),
            " is ", sum.scalar_type(), " of shape ", sum.sizes(),
            "; expected a floating-point tensor without dims, the sum over the samples");
    return sum.to(at::kFloat);
  }
  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) const override {
    return loss_all(output, target);
  }

 private:
  model::Model* const model_;
};

}  // namespace

ObjectivePtr make_model_loss(const ObjectiveOptions&, const Task& task, std::vector<Metric> metrics) {
  return std::make_shared<ModelLoss>(task.model, std::move(metrics));
}

}  // namespace trireme::objective
