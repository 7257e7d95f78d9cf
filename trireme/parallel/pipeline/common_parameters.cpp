#include "trireme/parallel/pipeline/internal/common_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include "trireme/parallel/data/internal/replicas.h"

namespace trireme::parallel {

CommonParameters::CommonParameters(std::optional<comm::Group> data, ReduceScale scale,
                                   const std::map<int, Stage>& stages)
    : data_(std::move(data)), scale_(scale) {
  std::map<std::string, int> first_stage;
  for (const auto& [number, stage] : stages) {
    for (const model::Layer& layer : stage.layers()) {
      for (const auto& [name, parameter] : layer.parameters) {
        const auto [known, is_new] = first_stage.emplace(name, number);
        if (!is_new && known->second != number && names_.insert(name).second)
          parameters_.emplace_back(name, parameter);
      }
    }
  }
  if (data_ && data_->size() == 1) data_.reset();
}

void CommonParameters::make_equal() {
  if (data_) broadcast_tensors(*data_, tensors_of(parameters_), /*root=*/0);
}

void CommonParameters::reduce() {
  if (!data_) return;
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : parameters_) {
    if (!parameter.requires_grad()) continue;
    at::Tensor& gradient = parameter.mutable_grad();
    gradient = gradient.defined() ? gradient.contiguous() : at::zeros_like(parameter);
    data_->all_reduce(gradient,
                      scale_ == ReduceScale::kMean ? comm::ReduceOp::kAverage : comm::ReduceOp::kSum);
  }
}

}  // namespace trireme::parallel
