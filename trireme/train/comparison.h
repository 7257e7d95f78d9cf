#pragma once
// Compares what a parallel run has computed with what one rank computes: losses, gradients, weights. Keeps
// the largest difference and the first tensor outside its bound. For `trireme verify`, and for programs with
// a loop of their own: hand in both sides, look at the verdict. One thread.
//
// The measure of a tensor is max |found - expected| over a scale: the largest |expected| of the tensor, but
// at least kFloor of the largest in the whole model, as a gradient that is zero but for rounding has no size
// of its own. Weights are compared by what the step added to them: |found - expected| of the whole tensor
// (2-norm) over the length of the update.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/optim/optimizer.h"

namespace trireme::train {

struct Bounds {
  double loss = 1e-5;
  double gradient = 1e-5;
  double weight = 1e-4;
  std::string reason;  ///< why they are not 0
};

struct TensorDifference {
  std::int64_t step = 0;
  std::string what;    ///< "loss", "gradient", "weight", "replica"
  std::string tensor;  ///< its name; empty for the loss
  double difference = 0;
  double bound = 0;
  /// "step 2: gradient of fc1.weight differs by 0.5 of its size; bound 1e-05"
  std::string describe() const;
};

class Comparison {
 public:
  static constexpr double kFloor = 1e-3;

  explicit Comparison(Bounds bounds) : bounds_(std::move(bounds)) {}

  void loss(std::int64_t step, double found, double expected);
  /// Undefined tensors count as zeros. Throws InvalidArgument: other names or shapes.
  void gradients(std::int64_t step, const optim::NamedTensors& found, const optim::NamedTensors& expected);
  void weights(std::int64_t step, const optim::NamedTensors& before, const optim::NamedTensors& found,
               const optim::NamedTensors& expected);
  /// Weights of two replicas, which have to be the same bits.
  void replicas(std::int64_t step, int rank, bool same);

  bool equal() const { return !first_; }
  /// Not a bit differed.
  bool bitwise() const { return equal() && largest_.difference == 0; }
  const TensorDifference& largest() const { return largest_; }
  const std::optional<TensorDifference>& first() const { return first_; }
  const Bounds& bounds() const { return bounds_; }

 private:
  void take(const TensorDifference& difference);

  Bounds bounds_;
  TensorDifference largest_;
  std::optional<TensorDifference> first_;
};

}  // namespace trireme::train
