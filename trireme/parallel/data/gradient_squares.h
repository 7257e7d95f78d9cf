#pragma once
// Sums the squares of a rank's own gradients during backward, before they are accumulated or reduced: |g|^2
// of each micro-batch, in f64, while the gradient is still in the cache. Owned by the training loop. Hooks on
// the parameters have its lifetime. Used from the thread that runs backward, between passes; gradients of a
// device are summed there.

#include <memory>

#include "trireme/batch/device_numbers.h"
#include "trireme/optim/optimizer.h"

namespace trireme::parallel {

/// A sum whose part on a device may still be on its way.
class UnreadSum {
 public:
  UnreadSum(double on_host, const at::Tensor& on_device) : on_host_(on_host), on_device_(on_device) {}
  /// The first call waits for the copy.
  double read() const {
    double sum = on_host_;
    for (const double value : on_device_.read()) sum += value;
    return sum;
  }

 private:
  double on_host_;
  batch::DeviceNumbers on_device_;
};

class GradientSquares {
 public:
  /// Of those that require a gradient, each once.
  explicit GradientSquares(const optim::NamedTensors& parameters);
  ~GradientSquares();
  GradientSquares(const GradientSquares&) = delete;
  GradientSquares& operator=(const GradientSquares&) = delete;

  /// Counts from zero, until the sum is taken. Without it nothing is looked at.
  void begin();
  /// Sum over the backward passes since begin(), parameter by parameter.
  UnreadSum take();

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
