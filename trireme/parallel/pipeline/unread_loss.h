#pragma once
// The sum of weight * loss over the micro-batches of a step, whose losses may still be on their way from a
// device (batch/device_numbers.h). Not thread-safe.

#include <ATen/core/Tensor.h>

#include <vector>

#include "trireme/batch/device_numbers.h"

namespace trireme::parallel {

class UnreadLoss {
 public:
  /// 0.
  UnreadLoss() = default;
  /// `losses`: of the micro-batches, one dim; `weights`: as many. `exact`: added as exact_sum() adds.
  UnreadLoss(const at::Tensor& losses, std::vector<double> weights, bool exact);

  /// The first call waits until the losses are on the host.
  double read() const;

 private:
  batch::DeviceNumbers losses_;
  std::vector<double> weights_;
  bool exact_ = false;
};

}  // namespace trireme::parallel
