#pragma once
// Tensor parallelism: self-attention whose heads are split over the ranks of a group. Each rank computes some
// heads of all sequences, with no communication between its two linear layers. The first is split by columns,
// the second by rows (Shoeybi et al., arXiv 1909.08053, section 3). Names and order of the features, queries,
// keys, values, are those of nanoGPT and of model::Gpt. With context parallelism, sequences are also split
// over another group, and its heads go around that ring (ring_attention.h). Collective; see collectives.h.

#include <torch/nn/module.h>

#include <memory>
#include <optional>

#include "trireme/parallel/context/sequence_pieces.h"
#include "trireme/parallel/tensor/dropout.h"
#include "trireme/parallel/tensor/linear.h"

namespace trireme::parallel {

struct ParallelAttentionOptions {
  std::int64_t width = 0;  ///< of the residual stream; a multiple of heads
  std::int64_t heads = 0;  ///< at least one for each rank; any number above it
  bool bias = true;
  bool causal = true;  ///< no token sees a later one
  double dropout =
      0;  ///< of attention weights; above 0 it needs keys, and (time, time) numbers for each head
  std::shared_ptr<DropoutKeys> keys = nullptr;
  /// The inputs are a rank's pieces of such sequences; with dropout 0.
  std::optional<ContextSequence> context = std::nullopt;
};

/// "c_attn.weight", "c_attn.bias", "c_proj.weight", "c_proj.bias".
class ParallelAttention : public torch::nn::Module {
 public:
  /// Throws InvalidArgument: more ranks than heads, or a width that is no multiple of the heads, a
  /// dropout without keys, or next to a context.
  ParallelAttention(comm::Group group, const ParallelAttentionOptions& options);
  /// (batch, time, width), replicated -> the same. An all-reduce, backward another.
  at::Tensor forward(const at::Tensor& input);
  /// The rank's part of each sequence -> the same. An all-gather and a reduce-scatter, backward likewise.
  at::Tensor forward(const at::Tensor& part, const Sequence& sequence);

 private:
  at::Tensor mixed(const at::Tensor& features) const;
  at::Tensor mixed_with_dropout(const at::Tensor& queries, const at::Tensor& keys,
                                const at::Tensor& values) const;

  const ParallelAttentionOptions options_;
  const Range heads_;  ///< of this rank
  std::shared_ptr<ColumnParallelLinear> c_attn_;
  std::shared_ptr<RowParallelLinear> c_proj_;
  std::shared_ptr<ParallelDropout> dropout_;  ///< null: none
};

}  // namespace trireme::parallel
