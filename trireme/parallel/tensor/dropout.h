#pragma once
// Dropout that drops the same elements as on one rank: whether an element stays is a function of (seed, pass,
// dropout, place in the whole tensor). So it is the same on all ranks for replicated activations, and
// different for each part of split ones. It is the same again when a pass is recomputed. This holds for any
// number of ranks. It does not use torch's generators, which differ between ranks. (Srivastava et al., JMLR
// 15, 2014.) The numbers are drawn on the host.

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "trireme/parallel/context/sequence_pieces.h"
#include "trireme/parallel/tensor/collectives.h"
#include "trireme/parallel/tensor/cut.h"

namespace trireme::parallel {

/// Keys of the random numbers of a model's dropouts. Shared by them; one thread.
class DropoutKeys {
 public:
  explicit DropoutKeys(std::uint64_t seed) : seed_(seed) {}
  /// Dropouts draw for that pass from now on: a number of its own for each forward pass over other samples
  /// (step, micro-batch, data-parallel rank), the same on all ranks that compute it.
  void begin(std::uint64_t pass) { pass_ = pass; }

 private:
  friend class ParallelDropout;
  const std::uint64_t seed_;
  std::optional<std::uint64_t> pass_;
  std::uint64_t dropouts_ = 0;  ///< made so far
};

class ParallelDropout : public torch::nn::Module {
 public:
  /// Models on all ranks make their dropouts in the same order. Throws InvalidArgument: a probability
  /// outside 0 to below 1.
  ParallelDropout(std::shared_ptr<DropoutKeys> keys, double probability);
  /// Replicated activations. In evaluation mode nothing is done. Two uses in one pass drop the same places.
  /// Throws InvalidArgument: before DropoutKeys::begin.
  at::Tensor forward(const at::Tensor& input);
  /// Activations of which the rank has that range along `dim`, of `size` in all.
  at::Tensor forward(const at::Tensor& part, std::int64_t dim, const Range& range, std::int64_t size);
  /// The rank's part of each sequence.
  at::Tensor forward(const at::Tensor& part, const Sequence& sequence, const comm::Group& group);
  /// The rank's pieces of each sequence along `dim`.
  at::Tensor forward(const at::Tensor& own, std::int64_t dim, const ContextSequence& sequence);

 private:
  at::Tensor factors(at::IntArrayRef sizes, std::int64_t dim, const Range& range, std::int64_t size) const;

  const std::shared_ptr<DropoutKeys> keys_;
  const std::uint64_t number_;  ///< of this dropout in the model
  const double probability_;
};

}  // namespace trireme::parallel
