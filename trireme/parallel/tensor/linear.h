#pragma once
// Linear layers whose weights are split over the ranks of a group. ColumnParallelLinear splits the outputs:
// each rank computes some features of all samples. RowParallelLinear splits the inputs: each rank computes a
// term of all features, and the sum is taken. A column-parallel layer followed by a row-parallel one needs
// one all-reduce forward and one backward (Shoeybi et al., arXiv 1909.08053, section 3). The function between
// them must act on single elements or on whole units (heads). At their borders activations are replicated,
// or, with a Sequence, split along it (Korthikanti et al., arXiv 2205.05198).
//
// Values are those of a torch::nn::Linear of the whole sizes: first values are parts of the whole parameter's
// (Model::initialise, model::initialise; until then those of seed 0). This holds for any number of ranks and
// sizes that they do not divide (cut.h). Collective; see collectives.h.

#include <torch/nn/module.h>

#include <optional>

#include "trireme/model/parameter_box.h"
#include "trireme/parallel/tensor/collectives.h"
#include "trireme/parallel/tensor/cut.h"

namespace trireme::parallel {

struct ParallelLinearOptions {
  std::int64_t in = 0;   ///< features of the whole layer
  std::int64_t out = 0;  ///< likewise
  bool bias = true;
  // Of the cut dim, out or in: see DimCut.
  std::int64_t parts = 1;
  std::int64_t unit = 1;
};

/// "weight" (out of this rank, in), "bias" (out of this rank).
class ColumnParallelLinear : public torch::nn::Module, public model::HoldsParts {
 public:
  /// Throws InvalidArgument: a size below 1, or outputs that are not made of such parts and units.
  ColumnParallelLinear(comm::Group group, const ParallelLinearOptions& options);
  /// (..., in), replicated -> (..., out of this rank). Backward: an all-reduce of the input's size.
  at::Tensor forward(const at::Tensor& input);
  /// The rank's part of each sequence -> its features of the whole sequences. An all-gather, backward a
  /// reduce-scatter.
  at::Tensor forward(const at::Tensor& part, const Sequence& sequence);
  std::vector<model::ParameterBox> boxes() const override;

 private:
  at::Tensor features_of(const at::Tensor& input) const;

  const comm::Group group_;
  const ParallelLinearOptions options_;
  const DimCut cut_;
  at::Tensor weight_, bias_;
};

/// "weight" (out, in of this rank), "bias" (out), which is replicated.
class RowParallelLinear : public torch::nn::Module, public model::HoldsParts {
 public:
  /// Throws InvalidArgument: a size below 1, or inputs that are not made of such parts and units.
  RowParallelLinear(comm::Group group, const ParallelLinearOptions& options);
  /// (..., in of this rank) -> (..., out), replicated. An all-reduce; backward nothing.
  at::Tensor forward(const at::Tensor& features);
  /// Features of whole sequences -> the rank's part of each sequence. A reduce-scatter, backward an
  /// all-gather, and an all-reduce for the bias.
  at::Tensor forward(const at::Tensor& features, const Sequence& sequence);
  std::vector<model::ParameterBox> boxes() const override;

 private:
  at::Tensor term_of(const at::Tensor& features) const;

  const comm::Group group_;
  const ParallelLinearOptions options_;
  const DimCut cut_;
  at::Tensor weight_, bias_;
};

}  // namespace trireme::parallel
