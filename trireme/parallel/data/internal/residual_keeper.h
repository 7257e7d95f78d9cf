#pragma once
// Hooks that keep what they leave out of a gradient, and can put it back.

#include "trireme/parallel/data/comm_hook.h"

namespace trireme::parallel {

class ResidualKeeper {
 public:
  virtual ~ResidualKeeper() = default;
  /// Adds the residuals of these gradients to them, `factor` times, and sets the residuals to 0. A gradient
  /// that is not finite, and its residual, stay as they are.
  virtual void release(GradientBucket& bucket, double factor) = 0;
  /// The factor with which an uncompressed sum over `group` then contains them.
  virtual double factor_in(const comm::Group& /*group*/, ReduceScale /*scale*/) const { return 1; }
};

}  // namespace trireme::parallel
