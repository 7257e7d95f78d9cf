#pragma once
// The 2-norm of all gradients of a model, whose parameters may be on the stages of a pipeline: norms of
// single parameters in f32, put together in the model's order, so that it has the same bits however the model
// is cut. A parameter that several stages share counts once; a gradient that is not defined counts as zero.
// Where ranks hold parts of them, the squares of all parts are added up, in f64. One thread.

#include <vector>

#include "trireme/comm/group.h"
#include "trireme/optim/optimizer.h"
#include "trireme/train/step/shard_specs.h"

namespace trireme::train {

class GradientNorm {
 public:
  /// `mine`: the parameters of this rank; `all`: the names of the model's, in its order. Collective in the
  /// pipeline's group.
  GradientNorm(comm::Group pipeline, const optim::NamedTensors& mine, const std::vector<std::string>& all);

  /// The same where ranks hold parts of them, for the ranks that together hold all of them.
  GradientNorm(comm::Group model_parallel, const optim::NamedTensors& mine,
               const std::vector<std::string>& all, const ShardSpecs& held);

  /// A number without dims, on the device of the gradients, which is not waited for. Collective; one small
  /// reduction where the pipeline has several ranks.
  at::Tensor measure();

 private:
  struct Counted {
    std::size_t place;  ///< in the model's order
    at::Tensor parameter;
  };

  GradientNorm(comm::Group model_parallel, const optim::NamedTensors& mine,
               const std::vector<std::string>& all, const ShardSpecs& held, bool in_parts);
  at::Tensor norms_of_parameters() const;

  comm::Group model_parallel_;
  const bool in_parts_;
  std::vector<Counted> counted_;
  std::size_t num_parameters_;
  c10::Device device_;
};

}  // namespace trireme::train
