#include "trireme/parallel/data/sync_batch_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/batchnorm.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/parallel/data/internal/joins.h"

namespace trireme::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Statistics of the global batch, per channel; `count` is one number.
struct Statistics {
  at::Tensor mean, variance, count;
};

/// The dtype of statistics and their sums.
at::ScalarType wide(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

/// One value per channel, shaped to broadcast against (N, C, *).
at::Tensor along_channels(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

/// Mean and biased variance of this rank's samples, then their number.
at::Tensor own_moments(const at::Tensor& input) {
  const std::int64_t channels = input.size(1);
  const auto options = input.options().dtype(wide(input.scalar_type())).memory_format(std::nullopt);
  if (input.numel() == 0) return at::zeros({2 * channels + 1}, options);
  // Running statistics in the wide dtype select wide sums for reduced dtypes.
  const at::Tensor unused = at::zeros({2, channels}, options);
  const auto [mean, variance] = at::batch_norm_update_stats(input, unused[0], unused[1], /*momentum=*/0);
  return at::cat({mean, variance, at::full({1}, static_cast<double>(input.numel() / channels), options)});
}

void require_values(double per_channel, const std::string& where) {
  require(per_channel > 1, "a batch norm in training mode needs more than one value per channel; found ",
          per_channel, " ", where, ": use a larger batch, or eval()");
}

Statistics global_statistics(const at::Tensor& input, comm::Group group) {
  const std::int64_t channels = input.size(1);
  const at::Tensor own = own_moments(input);
  at::Tensor all = at::empty({group.size(), own.numel()}, own.options());
  group.all_gather(all, own);
  const at::Tensor counts = all.narrow(1, 2 * channels, 1), means = all.narrow(1, 0, channels);
  const at::Tensor count = counts.sum(0);
  // Two values on this rank are enough. The check then needs no device synchronization.
  if (input.numel() < 2 * channels)
    require_values(count.item<double>(),
                   text("over the ", group.size(), " ranks of group '", group.name(), "'"));
  const at::Tensor mean = (means * counts).sum(0) / count;
  const at::Tensor variances = all.narrow(1, channels, channels) + (means - mean).square();
  return {mean, (variances * counts).sum(0) / count, count};
}

struct HeldGroup : torch::CustomClassHolder {
  explicit HeldGroup(comm::Group given) : group(std::move(given)) {}
  const comm::Group group;
};

/// Normalizes with given statistics, whose derivative backward takes into account.
class Normalization : public torch::autograd::Function<Normalization> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias, const Statistics& of, double eps,
                            const comm::Group& group) {
    context->save_for_backward({input, weight, of.mean, (of.variance + eps).rsqrt(), of.variance, of.count});
    context->saved_data["eps"] = eps;
    context->saved_data["group"] = at::IValue::make_capsule(c10::make_intrusive<HeldGroup>(group));
    if (input.numel() == 0) return at::empty_like(input);
    return at::batch_norm(input, weight, bias, of.mean, of.variance, /*training=*/false, /*momentum=*/0, eps,
                          /*cudnn_enabled=*/false);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require(
        !at::GradMode::is_enabled(),
        "SyncBatchNorm has no second derivative; found a backward with create_graph: use eval(), or another "
        "norm such as GroupNorm");
    const variable_list saved = context->get_saved_variables();
    // The sums of dy and of dy times the normalized input: the gradients of bias and weight on this rank.
    at::Tensor sums = own_sums(gradients[0], saved, context->saved_data["eps"].toDouble());
    variable_list results(6);
    results[1] = sums[1].clone();
    results[2] = sums[0].clone();
    if (context->needs_input_grad(0)) {
      const auto held = context->saved_data["group"].toCapsule();
      comm::Group group = static_cast<const HeldGroup&>(*held).group;
      group.all_reduce(sums);
      results[0] = input_gradient(gradients[0], saved, sums);
    }
    return results;
  }

 private:
  static at::Tensor own_sums(const at::Tensor& gradient, const variable_list& saved, double eps) {
    const at::Tensor &input = saved[0], &mean = saved[2], &inverse = saved[3], &variance = saved[4];
    if (input.numel() == 0) return at::zeros({2, input.size(1)}, mean.options());
    const auto [unused, of_weight, of_bias] =
        at::native_batch_norm_backward(gradient, input, at::ones_like(mean), mean, variance, mean, inverse,
                                       /*train=*/false, eps, std::array{false, true, true});
    return at::stack({of_bias, of_weight});
  }

  /// w / s * (dy - mean(dy) - xhat * mean(dy * xhat)), means over the global batch.
  static at::Tensor input_gradient(const at::Tensor& gradient, const variable_list& saved,
                                   const at::Tensor& sums) {
    const at::Tensor &input = saved[0], &weight = saved[1], &inverse = saved[3], &count = saved[5];
    if (input.numel() == 0) return at::empty_like(input);
    const at::Tensor factor = weight * inverse;
    const at::Tensor of_constant = -factor * sums[0] / count, of_input = -factor * inverse * sums[1] / count;
    const at::ScalarType dtype = inverse.scalar_type();
    at::Tensor result = input.to(dtype) - along_channels(saved[2], input);
    result.mul_(along_channels(of_input, input)).add_(along_channels(of_constant, input));
    result.addcmul_(gradient.to(dtype), along_channels(factor, input));
    return result.to(input.scalar_type());
  }
};

/// Updates `running` in its own dtype, computed in the dtype of `value`.
void move_towards(at::Tensor& running, const at::Tensor& value, double momentum) {
  running.copy_(running.to(value.scalar_type()).mul(1 - momentum).add(value, momentum));
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& given) : BatchNormModule(given) {
  SyncBatchNormImpl::reset();
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& given, comm::Group group)
    : SyncBatchNormImpl(given) {
  set_group(std::move(group));
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& given, comm::Group group,
                                     const BatchNormTensors& tensors)
    : BatchNormModule(given) {
  register_tensors(tensors);
  set_group(std::move(group));
}

void SyncBatchNormImpl::set_group(comm::Group group) { group_ = std::move(group); }

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "trireme::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", affine=" << options.affine() << ", track_running_stats=" << options.track_running_stats()
         << ")";
}

void SyncBatchNormImpl::check(const at::Tensor& input) const {
  require(
      input.dim() >= 2 && input.size(1) == options.num_features() && at::isFloatingType(input.scalar_type()),
      "SyncBatchNorm of ", options.num_features(), " channels: found an input of shape ", input.sizes(), ", ",
      input.scalar_type(), "; expected floating point of shape (N, ", options.num_features(), ") or (N, ",
      options.num_features(), ", *)");
}

double SyncBatchNormImpl::count_batch() {
  if (!options.track_running_stats()) return 0;
  num_batches_tracked += 1;
  const std::optional<double> momentum = options.momentum();
  return momentum.has_value() ? *momentum : 1 / num_batches_tracked.item<double>();
}

at::Tensor SyncBatchNormImpl::forward_of_rank(const at::Tensor& input) {
  const bool uses_batch = is_training() || !options.track_running_stats();
  if (uses_batch) require_values(static_cast<double>(input.numel() / options.num_features()), "on this rank");
  const double momentum = is_training() ? count_batch() : 0;
  return torch::nn::functional::detail::batch_norm(input, running_mean, running_var, weight, bias, uses_batch,
                                                   momentum, options.eps());
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  check(input);
  if (!is_training() || !group_.has_value() || group_->size() == 1) return forward_of_rank(input);
  reject_beside_join(*joins_of_this_thread(), *group_, "a SyncBatchNorm in training mode", kNoJoin);
  const Statistics statistics = global_statistics(input.detach(), *group_);
  const at::ScalarType dtype = statistics.mean.scalar_type();
  const at::Tensor scale = weight.defined() ? weight.to(dtype) : at::ones_like(statistics.mean);
  const at::Tensor shift = bias.defined() ? bias.to(dtype) : at::zeros_like(statistics.mean);
  at::Tensor output = Normalization::apply(input, scale, shift, statistics, options.eps(), *group_);
  if (const double momentum = count_batch(); options.track_running_stats()) {
    move_towards(running_mean, statistics.mean, momentum);
    move_towards(running_var, statistics.variance * (statistics.count / (statistics.count - 1)), momentum);
  }
  return output;
}

}  // namespace trireme::parallel
