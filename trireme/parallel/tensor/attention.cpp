#include "trireme/parallel/tensor/attention.h"

#include <ATen/ops/scaled_dot_product_attention.h>

#include <utility>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::parallel {
namespace {

/// How many heads this rank has.
std::int64_t checked_heads(const comm::Group& group, const ParallelAttentionOptions& options) {
  require(options.heads >= 1 && options.width >= 1 && options.width % options.heads == 0,
          "attention of width ", options.width, " with ", options.heads,
          " heads; expected a width that is a multiple of the heads");
  require(group.size() <= options.heads, "attention of ", options.heads, " heads cannot be cut over the ",
          group.size(), " ranks of group '", group.name(), "': ", group.size() - options.heads,
          " of them would have none; use at most ", options.heads, " ranks, or at least ", group.size(),
          " heads");
  return part_of_rank(options.heads, group.rank(), group.size()).size;
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
}

at::Tensor ParallelAttention::mixed(const at::Tensor& features) const {
  require(features.dim() == 3, "attention is given a tensor of ", features.dim(),
          " dims; expected (batch, time, width)");
  // (batch, time, 3 x heads x unit) -> 3 of (batch, heads, time, unit)
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : features.chunk(3, 2))
    parts.push_back(part.unflatten(2, {heads_, part.size(2) / heads_}).transpose(1, 2));
  const at::Tensor result = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], /*attn_mask=*/{},
                                                             /*dropout_p=*/0, options_.causal);
  return result.transpose(1, 2).flatten(2);
}

at::Tensor ParallelAttention::forward(const at::Tensor& input) {
  return c_proj_->forward(mixed(c_attn_->forward(input)));
}

at::Tensor ParallelAttention::forward(const at::Tensor& part, const Sequence& sequence) {
  return c_proj_->forward(mixed(c_attn_->forward(part, sequence)), sequence);
}

}  // namespace trireme::parallel
