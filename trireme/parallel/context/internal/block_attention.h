#pragma once
// Attention of some queries to one block of keys, and its derivative when the sum of weights is that over all
// blocks: the step of a ring of blocks. On the CPU by libtorch's flash kernel, elsewhere by products, with
// (queries, keys) numbers for each head.

#include <ATen/core/Tensor.h>

namespace trireme::parallel {

struct BlockOptions {
  bool causal = false;  ///< as many keys as queries, of the same places, in order
  double scale = 1;     ///< of the products of queries and keys
};

/// (batch, heads, queries, features) and (batch, heads, queries), in f32, or f64 where the inputs are.
struct BlockResult {
  at::Tensor output;       ///< weighed by this block's weights, which add up to 1
  at::Tensor log_weights;  ///< logarithm of their sum before
};
BlockResult attend_to_block(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                            const BlockOptions& options);

/// Merges: becomes the attention to both blocks.
void merge_block(BlockResult& all, const BlockResult& block);

/// Of the whole attention.
struct AttentionEnd {
  at::Tensor gradient;     ///< of the output, in the type of the queries
  at::Tensor output;       ///< in the type of the queries
  at::Tensor log_weights;  ///< of all blocks
};
/// Terms of this block, in the type of the queries.
struct BlockGradients {
  at::Tensor queries, keys, values;
};
BlockGradients derive_block(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                            const AttentionEnd& end, const BlockOptions& options);

}  // namespace trireme::parallel
