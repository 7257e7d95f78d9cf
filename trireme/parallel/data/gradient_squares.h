#pragma once
// Adds up the squares of a rank's own gradients while backward hands them over, before they are added to what
// is there or reduced: |g|^2 of each micro-batch, in f64, while the gradient is still in the cache. Owned by
// the training loop. Hooks on the parameters live as long as it does. Used from the thread that runs
// backward, between passes; gradients of a device are added up there.

#include <memory>

#include "trireme/optim/optimizer.h"

namespace trireme::parallel {

class GradientSquares {
 public:
  /// Of those that require a gradient, each once.
  explicit GradientSquares(const optim::NamedTensors& parameters);
  ~GradientSquares();
  GradientSquares(const GradientSquares&) = delete;
  GradientSquares& operator=(const GradientSquares&) = delete;

  /// Counts from zero, until the sum is taken. Without it nothing is looked at.
  void begin();
  /// Sum over the backward passes since begin(), parameter by parameter; waits for the device.
  double take();

 private:
  struct Sum;
  struct Hook {
    at::Tensor parameter;
    unsigned number;
  };
  std::shared_ptr<Sum> sum_;
  std::vector<Hook> hooks_;
};

/// In f64, of a tensor of any kind; sparse ones as if they were dense.
double sum_of_squares(const at::Tensor& tensor);

}  // namespace trireme::parallel
