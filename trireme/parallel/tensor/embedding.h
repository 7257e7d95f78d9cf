#pragma once
// An embedding whose rows, the vocabulary, are split over the ranks of a group, and the logits with the same
// rows (tied weights). Each rank looks up the tokens of its rows and has zeros for the others. The sum is the
// embedding: exactly that of one rank, as all terms but one are zero. (Shoeybi et al., arXiv 1909.08053,
// section 3.) Collective; see collectives.h.

#include <torch/nn/module.h>

#include "trireme/model/parameter_box.h"
#include "trireme/parallel/tensor/collectives.h"
#include "trireme/parallel/tensor/cut.h"

namespace trireme::parallel {

/// "weight" (rows of this rank, width).
class VocabularyParallelEmbedding : public torch::nn::Module, public model::HoldsParts {
 public:
  /// `vocabulary` rows of `width` numbers, any of each.
  VocabularyParallelEmbedding(comm::Group group, std::int64_t vocabulary, std::int64_t width);
  /// Tokens, i64, the same on all ranks -> (..., width), replicated. An all-reduce; backward nothing.
  /// Throws InvalidArgument: a token that is not in the vocabulary.
  at::Tensor forward(const at::Tensor& tokens);
  /// Whole sequences of tokens -> the rank's part of each. A reduce-scatter, backward an all-gather.
  at::Tensor forward(const at::Tensor& tokens, const Sequence& sequence);
  /// (..., width), replicated -> logits of this rank's rows (..., rows). Backward: an all-reduce.
  at::Tensor logits(const at::Tensor& input);
  /// The rank's part of each sequence -> logits of its rows for the whole. As ColumnParallelLinear.
  at::Tensor logits(const at::Tensor& part, const Sequence& sequence);
  std::vector<model::ParameterBox> boxes() const override;
  bool is_embedding() const override { return true; }

 private:
  at::Tensor term_of(const at::Tensor& tokens) const;

  const comm::Group group_;
  const DimCut cut_;
  const std::int64_t width_;
  at::Tensor weight_;
};

}  // namespace trireme::parallel
