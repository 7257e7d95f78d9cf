#pragma once
// Compares a parallel run with a run on one rank: losses, gradients, weights. Keeps the largest difference
// and the first tensor outside its bound. For `trireme verify`, and for programs with a custom training loop:
// pass both sides, then read the verdict. A step without a comparison is not equal: a verdict needs one
// gradient or weight of one step that was not skipped. One thread.
// | The measure of a tensor is max |found - expected| over a scale. The scale is the largest |expected| of
// the tensor, but at least kFloor of the largest in the whole model. The floor is for gradients that are zero
// up to rounding. Weights are compared by their update in the step: |found - expected| of the whole tensor
// (2-norm) over the length of the update.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trireme/optim/optimizer.h"

namespace trireme::train {

/// How far apart both sides may be, by the measure above.
struct Bounds {
  double loss = 1e-5;
  double gradient = 1e-5;
  double weight = 1e-4;
  /// Besides these, absolute, on each element of a gradient: the loss by a number format that cannot
  /// represent small numbers. A weight may differ by as much as its gradient.
  double gradient_loss = 0;
  std::string reason;  ///< why they are not 0
};

/// One tensor, or loss, that both sides have, and how far they are apart.
struct TensorDifference {
  std::int64_t step = 0;
  std::string what;    ///< "loss", "gradient", "weight", "replica", "skipped"
  std::string tensor;  ///< its name; of a replica the ranks, of a skipped step the side; empty for the loss
  double difference = 0;
  double bound = 0;
  /// "step 2: gradient of fc1.weight differs by 0.5 of its size; bound 1e-05"
  std::string describe() const;
};

class Comparison {
 public:
  static constexpr double kFloor = 1e-3;

  explicit Comparison(Bounds bounds) : bounds_(std::move(bounds)) {}

  /// Compares the losses of a step.
  void loss(std::int64_t step, double found, double expected);
  /// Undefined tensors count as zeros. Throws InvalidArgument: other names or shapes.
  void gradients(std::int64_t step, const optim::NamedTensors& found, const optim::NamedTensors& expected);
  void weights(std::int64_t step, const optim::NamedTensors& before, const optim::NamedTensors& found,
               const optim::NamedTensors& expected);
  /// A step that both sides left out, as gradients were no numbers. It is no proof of anything; a weight that
  /// has moved all the same is a difference. Throws InvalidArgument: other names.
  void skipped(std::int64_t step, const optim::NamedTensors& before, const optim::NamedTensors& found);
  /// A step that one side alone left out, which is a difference.
  enum class Side { kFound, kExpected };
  void skipped_by_one(std::int64_t step, Side side);
  /// The weights of replica `rank` are not, bit by bit, those of the rank that it should be like; `weight` is
  /// the first that is not, where it is known.
  void replica_differs(std::int64_t step, int rank, int should_be_like, const std::string& weight = "");

  /// Steps of which anything was handed in, and those among them that both sides left out.
  std::int64_t num_steps() const { return static_cast<std::int64_t>(steps_.size()); }
  std::int64_t num_skipped() const { return static_cast<std::int64_t>(skipped_.size()); }
  /// Whether a gradient or a weight of any step was compared.
  bool verified() const { return verified_; }
  /// Verified, and nothing was outside its bound.
  bool equal() const { return verified_ && !first_; }
  /// Not a bit differed.
  bool bitwise() const { return equal() && largest_.difference == 0; }
  const TensorDifference& largest() const { return largest_; }
  const std::optional<TensorDifference>& first() const { return first_; }
  const Bounds& bounds() const { return bounds_; }

 private:
  void take(const TensorDifference& difference);

  Bounds bounds_;
  std::set<std::int64_t> steps_, skipped_;
  bool verified_ = false;
  std::map<std::string, double> loss_of_gradient_;  ///< of a current step of a tensor, 2-norm over its size
  TensorDifference largest_;
  std::optional<TensorDifference> first_;
};

}  // namespace trireme::train
