#pragma once
// The tensors that this thread writes or reads between two calls of CallHooks, of those that gradients go
// through.

#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::remote {

class TensorCollector {
 public:
  /// This thread's.
  static TensorCollector& here();
  /// Drops earlier tensors.
  void begin() {
    tensors_.clear();
    is_open_ = true;
  }
  std::vector<at::Tensor> end();
  bool is_open() const { return is_open_; }
  void add(const at::Tensor& tensor) {
    if (is_open_) tensors_.push_back(tensor);
  }

 private:
  bool is_open_ = false;
  std::vector<at::Tensor> tensors_;
};

}  // namespace trireme::remote
