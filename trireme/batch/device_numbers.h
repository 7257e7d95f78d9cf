#pragma once
// Numbers of a device that the host reads later. The copy into pinned memory begins at once, on the device's
// current stream. A read waits for that copy alone, and not for later work of the device. One step later the
// copy is over, and the device does not idle. On the CPU the numbers are read at once. Not thread-safe.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace trireme::batch {

class DeviceNumbers {
 public:
  /// No numbers.
  DeviceNumbers() = default;
  /// `numbers`: any shape and dtype; undefined: no numbers. Cost on a device: one copy of few bytes, without
  /// a wait.
  explicit DeviceNumbers(const at::Tensor& numbers);

  /// In the order of the tensor's memory, f64. The first call waits for the copy.
  const std::vector<double>& read() const;

 private:
  struct Copy;
  std::shared_ptr<Copy> copy_;
};

}  // namespace trireme::batch
