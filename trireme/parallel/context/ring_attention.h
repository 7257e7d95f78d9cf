#pragma once
// Context parallelism: attention over sequences that are split over the ranks of a context group
// (sequence_pieces.h). Each rank has the queries of its own tokens. Keys and values of all ranks arrive on a
// ring, one rank's at a time. While a rank computes with one block, the next is in transfer. Blocks are
// merged by the logarithms of the sums of their weights (online softmax). So no rank ever holds scores, keys
// or values of a whole sequence. In the backward, keys and values go around once more, together with their
// gradients, which end at their owners. Causal: masked blocks are not computed, and all ranks have equal
// work.
//
// Sources: Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers", arXiv 2310.01889. Brandon
// et al., "Striped Attention", arXiv 2311.09431, for the balance of causal work. Dao et al.,
// "FlashAttention", arXiv 2205.14135, for blocks and their derivative.

#include <ATen/core/Tensor.h>

#include <optional>

#include "trireme/parallel/context/sequence_pieces.h"

namespace trireme::parallel {

struct RingAttentionOptions {
  bool causal = true;                          ///< no token sees a later one of the whole sequence
  std::optional<double> scale = std::nullopt;  ///< none: 1 / sqrt(features)
};

/// Queries, keys and values (batch, heads, own tokens, features) of one floating-point type and shape -> the
/// same shape and type: scaled dot-product attention over the whole sequence. Sums are f32, or f64 for f64.
/// It keeps its inputs, its output and a number per query for the backward, and while it runs two blocks of
/// keys and values.
///
/// Over n ranks, with B the bytes of a rank's keys and values: forward n - 1 messages of B, backward as many
/// and n of gradients (B, or 2 B where the type is of 16 bits). Work of a rank: 1/n of the whole.
///
/// Collective; backward, too, in the same order on all ranks. A group of one rank costs nothing. There is no
/// dropout of attention weights: kernels of blocks never give them out. Its gradient cannot be derived once
/// more. Throws InvalidArgument: shapes or types other than those above, before anything is exchanged.
at::Tensor ring_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                          const ContextSequence& sequence, const RingAttentionOptions& options = {});

}  // namespace trireme::parallel
