#include "trireme/parallel/tensor/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/parallel/context/ring_attention.h"

namespace trireme::parallel {
namespace {

Range checked_heads(const comm::Group& group, const ParallelAttentionOptions& options) {
  require(options.heads >= 1 && options.width >= 1 && options.width % options.heads == 0,
          "attention of width ", options.width, " with ", options.heads,
          " heads; expected a width that is a multiple of the heads");
  require(group.size() <= options.heads, "attention of ", options.heads, " heads cannot be cut over the ",
          group.size(), " ranks of group '", group.name(), "': ", group.size() - options.heads,
          " of them would have none; use at most ", options.heads, " ranks, or at least ", group.size(),
          " heads");
  require(options.dropout == 0 || options.keys, "attention with a dropout of ", options.dropout,
          " needs the model's DropoutKeys in its options");
  require(options.dropout == 0 || !options.context,
          "attention over sequences that are split over ranks, with a ", "dropout of ", options.dropout,
          ": blocks of a ring never give out the weights that it would drop; ",
          "leave it out, and drop what attention returns");
  return part_of_rank(options.heads, group.rank(), group.size());
}

}  // namespace

ParallelAttention::ParallelAttention(comm::Group group, const ParallelAttentionOptions& options)
    : options_(options), heads_(checked_heads(group, options)) {
  const std::int64_t width = options.width, unit = width / options.heads;
  c_attn_ = register_module(
      "c_attn",
      std::make_shared<ColumnParallelLinear>(
          group, ParallelLinearOptions{
                     .in = width, .out = 3 * width, .bias = options.bias, .parts = 3, .unit = unit}));
  c_proj_ = register_module(
      "c_proj",
      std::make_shared<RowParallelLinear>(
          group, ParallelLinearOptions{.in = width, .out = width, .bias = options.bias, .unit = unit}));
  if (options.dropout > 0)
    dropout_ = register_module("dropout", std::make_shared<ParallelDropout>(options.keys, options.dropout));
}

at::Tensor ParallelAttention::mixed_with_dropout(const at::Tensor& queries, const at::Tensor& keys,
                                                 const at::Tensor& values) const {
  const double scale = 1 / std::sqrt(static_cast<double>(queries.size(3)));
  at::Tensor scores = at::matmul(queries, keys.transpose(2, 3)) * scale;
  if (options_.causal) {
    const at::Tensor later =
        at::ones({queries.size(2), keys.size(2)}, scores.options().dtype(at::kBool)).triu(1);
    scores = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
  }
  return at::matmul(dropout_->forward(scores.softmax(3), 1, heads_, options_.heads), values);
}

at::Tensor ParallelAttention::mixed(const at::Tensor& features) const {
  require(features.dim() == 3, "attention is given a tensor of ", features.dim(),
          " dims; expected (batch, time, width)");
  // (batch, time, 3 x heads x unit) -> 3 of (batch, heads, time, unit)
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : features.chunk(3, 2))
    parts.push_back(part.unflatten(2, {heads_.size, part.size(2) / heads_.size}).transpose(1, 2));
  const auto result = [&] {
    if (options_.context)
      return ring_attention(parts[0], parts[1], parts[2], *options_.context, {.causal = options_.causal});
    if (dropout_ && is_training()) return mixed_with_dropout(parts[0], parts[1], parts[2]);
    return at::scaled_dot_product_attention(parts[0], parts[1], parts[2], /*attn_mask=*/{}, /*dropout_p=*/0,
                                            options_.causal);
  };
  return result().transpose(1, 2).flatten(2);
}

at::Tensor ParallelAttention::forward(const at::Tensor& input) {
  return c_proj_->forward(mixed(c_attn_->forward(input)));
}

at::Tensor ParallelAttention::forward(const at::Tensor& part, const Sequence& sequence) {
  return c_proj_->forward(mixed(c_attn_->forward(part, sequence)), sequence);
}

}  // namespace trireme::parallel
