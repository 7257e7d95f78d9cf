#pragma once
// The number format of forward passes. "fp32" computes as the model is; "bf16" lets autocast run matrix
// products and convolutions in bfloat16 (Micikevicius et al., arXiv 1710.03740), while weights, gradients and
// the loss stay f32; "fp16" does so in float16, whose small range needs a scaled loss (optim/loss_scaler.h).
// Autocast's switches belong to the thread.

#include <string>

namespace trireme::train {

class PrecisionScope {
 public:
  /// `precision` is one of precision_names(). Throws InvalidArgument.
  explicit PrecisionScope(const std::string& precision);
  ~PrecisionScope();
  PrecisionScope(const PrecisionScope&) = delete;
  PrecisionScope& operator=(const PrecisionScope&) = delete;

 private:
  bool autocast_before_;
};

/// Whether gradients in this precision need a loss scaler.
bool scales_loss(const std::string& precision);

}  // namespace trireme::train
