#include "trireme/parallel/data/deferred_batch_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/functional/batchnorm.h>

#include <optional>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/model/forward_record.h"
#include "trireme/parallel/data/internal/batch_norm_conversion.h"

namespace trireme::parallel {
namespace {

void require_chunks(std::int64_t chunks) {
  require(chunks >= 1, "DeferredBatchNorm of ", chunks, " micro-batches; expected at least 1");
}

}  // namespace

DeferredBatchNormImpl::DeferredBatchNormImpl(const torch::nn::BatchNormOptions& given, std::int64_t chunks)
    : BatchNormModule(given), chunks_(chunks) {
  require_chunks(chunks);
  DeferredBatchNormImpl::reset();
}

DeferredBatchNormImpl::DeferredBatchNormImpl(const torch::nn::BatchNormOptions& given, std::int64_t chunks,
                                             const BatchNormTensors& tensors)
    : BatchNormModule(given), chunks_(chunks) {
  require_chunks(chunks);
  register_tensors(tensors);
}

void DeferredBatchNormImpl::set_chunks(std::int64_t chunks) {
  require_chunks(chunks);
  chunks_ = chunks;
  seen_ = 0;
}

void DeferredBatchNormImpl::reset() {
  BatchNormModule::reset();
  seen_ = 0;
}

void DeferredBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "trireme::DeferredBatchNorm(" << options.num_features()
         << ", chunks=" << chunks_ << ", eps=" << options.eps() << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ")";
}

/// Each forward has a new number, except a recomputation, which gets the number of its first run.
bool DeferredBatchNormImpl::is_first_run() {
  const std::uint64_t number = ++last_forward_;
  return model::same_again(number) == number;
}

/// By Chan et al., "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
void DeferredBatchNormImpl::add(const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  const at::ScalarType wide = input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<std::int64_t> dims = {0};
  for (std::int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  const auto [variance, mean] = at::var_mean(input.detach().to(wide), dims, /*unbiased=*/false);
  const auto count = static_cast<double>(input.numel() / input.size(1));
  if (seen_++ == 0) {
    count_ = count;
    mean_ = mean;
    squares_ = variance * count;
    return;
  }
  const at::Tensor difference = mean - mean_;
  const double sum = count_ + count;
  squares_ = squares_ + variance * count + difference.square() * (count_ * count / sum);
  mean_ = mean_ + difference * (count / sum);
  count_ = sum;
}

void DeferredBatchNormImpl::end_batch() {
  const at::NoGradGuard no_grad;
  num_batches_tracked += 1;
  const std::optional<double> given = options.momentum();
  const double momentum = given.has_value() ? *given : 1 / num_batches_tracked.item<double>();
  const auto move = [&](at::Tensor& running, const at::Tensor& value) {
    running.copy_(running.to(value.scalar_type()).mul(1 - momentum).add(value, momentum));
  };
  move(running_mean, mean_);
  move(running_var, squares_ / (count_ - 1));
  mean_ = squares_ = at::Tensor();
  seen_ = 0;
}

at::Tensor DeferredBatchNormImpl::forward(const at::Tensor& input) {
  require(
      input.dim() >= 2 && input.size(1) == options.num_features() && at::isFloatingType(input.scalar_type()),
      "DeferredBatchNorm of ", options.num_features(), " channels: found an input of shape ", input.sizes(),
      ", ", input.scalar_type(), "; expected floating point of shape (N, ", options.num_features(),
      ") or (N, ", options.num_features(), ", *)");
  const bool tracks = is_training() && options.track_running_stats();
  const bool uses_batch = is_training() || !options.track_running_stats();
  require(
      !uses_batch || input.numel() > options.num_features(),
      "a batch norm in training mode needs more than one value per channel; found a micro-batch of shape ",
      input.sizes(), ": use fewer micro-batches, or eval()");
  if (tracks && is_first_run()) {
    add(input);
    if (seen_ == chunks_) end_batch();
  }
  const at::Tensor none;
  return torch::nn::functional::detail::batch_norm(input, uses_batch ? none : running_mean,
                                                   uses_batch ? none : running_var, weight, bias, uses_batch,
                                                   /*momentum=*/0, options.eps());
}

std::int64_t convert_deferred_batchnorm(torch::nn::Module& module, std::int64_t chunks) {
  require_chunks(chunks);
  BatchNormConversion<DeferredBatchNormImpl> conversion(
      module, {.function = "convert_deferred_batchnorm", .layer = "trireme::DeferredBatchNorm"});
  return conversion.run(
      [&](const torch::nn::BatchNormOptions& options, const BatchNormTensors& tensors) {
        return std::make_shared<DeferredBatchNormImpl>(options, chunks, tensors);
      },
      [&](DeferredBatchNormImpl& layer) { layer.set_chunks(chunks); });
}

}  // namespace trireme::parallel
