// Gradients from torch::autograd::grad(): no parameter hook is called for them, so the caller passes them in.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/parallel/data/internal/joins.h"
#include "trireme/parallel/data/internal/reducer.h"

namespace trireme::parallel {
namespace {

/// Gradients of one dtype and device in one flat tensor. It ends with one element per gradient that tells
/// whether a rank has it.
class ReducedTogether {
 public:
  ReducedTogether(const comm::Group& group, const at::Tensor& first)
      : options_(first.options()), group_(group) {}

  bool takes(const at::Tensor& parameter) const {
    return parameter.scalar_type() == options_.dtype().toScalarType() &&
           parameter.device() == options_.device();
  }

  void add(std::size_t number, const at::Tensor& parameter) {
    numbers_.push_back(number);
    begins_.push_back(numel_);
    numel_ += parameter.numel();
  }

  void start(const std::vector<at::Tensor>& gradients, comm::ReduceOp op) {
    flat_ = group_.allocate(numel_ + static_cast<std::int64_t>(numbers_.size()), options_);
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      const at::Tensor& gradient = gradients[numbers_[i]];
      if (!gradient.defined()) continue;
      place_of(i, gradient).copy_(gradient);
      has(i).fill_(1);
    }
    pending_ = group_.all_reduce_async(flat_, op);
  }

  /// An undefined gradient becomes the reduced one if another rank has it.
  void finish(std::vector<at::Tensor>& gradients, const std::vector<at::Tensor>& parameters) {
    pending_.wait();
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      at::Tensor& gradient = gradients[numbers_[i]];
      if (gradient.defined() || has(i).item<double>() != 0) gradient = place_of(i, parameters[numbers_[i]]);
    }
  }

 private:
  at::Tensor place_of(std::size_t i, const at::Tensor& like) const {
    return flat_.narrow(0, begins_[i], like.numel()).view(like.sizes());
  }
  at::Tensor has(std::size_t i) const { return flat_[numel_ + static_cast<std::int64_t>(i)]; }

  at::TensorOptions options_;
  comm::Group group_;
  std::vector<std::size_t> numbers_;
  std::vector<std::int64_t> begins_;
  std::int64_t numel_ = 0;
  at::Tensor flat_;
  comm::Pending pending_;
};

void check_gradients(const std::vector<at::Tensor>& gradients, const std::vector<at::Tensor>& parameters) {
  require(gradients.size() == parameters.size(), "reduce_gradients(): found ", gradients.size(),
          " gradients and ", parameters.size(),
          " parameters; expected the parameters given to autograd::grad()");
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor &gradient = gradients[i], &parameter = parameters[i];
    require(parameter.defined(), "reduce_gradients(): found an undefined parameter ", i);
    if (!gradient.defined()) continue;
    require(gradient.sizes() == parameter.sizes() && gradient.scalar_type() == parameter.scalar_type() &&
                gradient.device() == parameter.device() && gradient.layout() == at::kStrided,
            "reduce_gradients(): found gradient ", i, " of shape ", gradient.sizes(), ", ",
            gradient.scalar_type(), "; expected a dense one of shape ", parameter.sizes(), ", ",
            parameter.scalar_type(), ", as its parameter");
    require(!gradient.requires_grad(), "reduce_gradients(): found gradient ", i,
            " made with create_graph; the reduction has no derivative: expected a detached gradient");
  }
}

}  // namespace

void DistributedDataParallel::reduce_gradients(std::vector<at::Tensor>& gradients,
                                               const std::vector<at::Tensor>& parameters) {
  check_gradients(gradients, parameters);
  reducer_->require_finished("reduce_gradients()");
  reject_beside_join(*joins_of_this_thread(), reducer_->group, "reduce_gradients()", kNoJoin);
  if (reducer_->group.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<ReducedTogether> all;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto place = std::ranges::find_if(all, [&](const auto& each) { return each.takes(parameters[i]); });
    if (place == all.end()) place = all.emplace(all.end(), reducer_->group, parameters[i]);
    place->add(i, parameters[i]);
  }
  const auto op =
      reducer_->options.scale == ReduceScale::kMean ? comm::ReduceOp::kAverage : comm::ReduceOp::kSum;
  for (ReducedTogether& each : all) each.start(gradients, op);
  for (ReducedTogether& each : all) each.finish(gradients, parameters);
}

}  // namespace trireme::parallel
