#include "trireme/parallel/context/internal/block_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <limits>
#include <tuple>

namespace trireme::parallel {
namespace {

at::ScalarType type_of_sums(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Scaled dot products of queries and keys, in the dtype of sums. Causal: scores of later keys are -infinity.
at::Tensor scores_of(const at::Tensor& queries, const at::Tensor& keys, const BlockOptions& options) {
  const at::ScalarType type = type_of_sums(queries);
  at::Tensor scores = at::matmul(queries.to(type), keys.to(type).transpose(2, 3)) * options.scale;
  if (!options.causal) return scores;
  const at::Tensor later =
      at::ones({queries.size(2), keys.size(2)}, scores.options().dtype(at::kBool)).triu(1);
  return scores.masked_fill_(later, -std::numeric_limits<double>::infinity());
}

}  // namespace

BlockResult attend_to_block(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                            const BlockOptions& options) {
  const at::ScalarType type = type_of_sums(queries);
  if (queries.is_cpu()) {
    const auto [output, log_weights] = at::_scaled_dot_product_flash_attention_for_cpu(
        queries, keys, values, /*dropout_p=*/0, options.causal, /*attn_mask=*/{}, options.scale);
    return {.output = output.to(type), .log_weights = log_weights.to(type)};
  }
  at::Tensor scores = scores_of(queries, keys, options);
  const at::Tensor log_weights = scores.logsumexp(3);
  const at::Tensor weights = scores.sub_(log_weights.unsqueeze(3)).exp_();
  return {.output = at::matmul(weights, values.to(type)), .log_weights = log_weights};
}

void merge_block(BlockResult& all, const BlockResult& block) {
  const at::Tensor share = (block.log_weights - all.log_weights).sigmoid_().unsqueeze(3);
  all.output.add_((block.output - all.output).mul_(share));
  all.log_weights.copy_(at::logaddexp(all.log_weights, block.log_weights));
}

// With weights p = exp(score - log_weights) over all blocks, and d = sum over features of gradient x output:
// the gradient of a score is p (gradient . value - d), in every block (Dao et al., FlashAttention, arXiv
// 2205.14135, appendix B.2).
BlockGradients derive_block(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                            const AttentionEnd& end, const BlockOptions& options) {
  if (queries.is_cpu()) {
    BlockGradients gradients;
    std::tie(gradients.queries, gradients.keys, gradients.values) =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            end.gradient, queries, keys, values, end.output, end.log_weights, /*dropout_p=*/0, options.causal,
            /*attn_mask=*/{}, options.scale);
    return gradients;
  }
  const at::ScalarType type = type_of_sums(queries), given = queries.scalar_type();
  const at::Tensor weights = scores_of(queries, keys, options).sub_(end.log_weights.unsqueeze(3)).exp_();
  const at::Tensor gradient = end.gradient.to(type);
  const at::Tensor of_output = (gradient * end.output.to(type)).sum(3, /*keepdim=*/true);
  const at::Tensor of_scores =
      (at::matmul(gradient, values.to(type).transpose(2, 3)) - of_output) * weights * options.scale;
  return {.queries = at::matmul(of_scores, keys.to(type)).to(given),
          .keys = at::matmul(of_scores.transpose(2, 3), queries.to(type)).to(given),
          .values = at::matmul(weights.transpose(2, 3), gradient).to(given)};
}

}  // namespace trireme::parallel
