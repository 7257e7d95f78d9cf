#pragma once
// The number format of forward passes. "fp32" computes as the model is; "bf16" lets autocast run matrix
// products and convolutions in bfloat16 (Micikevicius et al., arXiv 1710.03740), while weights, gradients and
// the loss stay f32; "fp16" does so in float16, whose small range needs a scaled loss (optim/loss_scaler.h).
// Autocast's switches belong to the thread.

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <string>

namespace trireme::train {

/// A row of the table of formats, which train.precision names.
struct Precision {
  const char* name = "fp32";
  at::ScalarType autocast_to = at::kFloat;  ///< f32: none
  bool scales_loss = false;                 ///< gradients need a loss scaler
  double rounding = 0x1p-24;                ///< share of a number by which rounding changes it, at most
};

/// The row of that name. Throws InvalidArgument with the nearest one.
const Precision& precision_of(const std::string& name);

class PrecisionScope {
 public:
  PrecisionScope(const Precision& precision, c10::DeviceType device);
  ~PrecisionScope();
  PrecisionScope(const PrecisionScope&) = delete;
  PrecisionScope& operator=(const PrecisionScope&) = delete;

 private:
  c10::DeviceType device_;
  bool autocast_before_;
};

}  // namespace trireme::train
