#pragma once
// Dynamic loss scaling for gradients in fp16 (Micikevicius et al., arXiv 1710.03740, section 3.2; PyTorch's
// GradScaler is the definition). The loss is multiplied by a scale before backward, so that small gradients
// do not vanish. Gradients are divided by it afterwards. When one is not finite, the step is skipped and the
// scale falls. After a row of good steps it grows. Where gradients are the same on all ranks, so is every
// decision, without communication. On a device the decision can stay there (decide()): the host reads
// nothing. Not thread-safe.

#include "trireme/optim/optimizer.h"

namespace trireme::optim {

struct LossScalerOptions {
  double initial = 32768;        ///< 2^15
  double factor = 2;             ///< by which it grows and falls, above 1
  std::int64_t interval = 2000;  ///< good steps in a row after which it grows, at least 1
  double least = 1;              ///< below it a run has diverged
  double most = 16777216;        ///< 2^24
};

class LossScaler {
 public:
  /// Throws InvalidArgument: a factor of at most 1, limits in the wrong order, an initial scale outside.
  explicit LossScaler(const LossScalerOptions& options, c10::Device device = c10::kCPU);

  /// Waits for the device.
  double scale() const;
  /// f64, no dims, on the device: of the steps until the next decision.
  const at::Tensor& scale_there() const { return scale_; }
  /// Divides the gradients by the scale. False when one of them is not finite: the step has to be left out.
  bool unscale(const NamedTensors& parameters) const;
  /// After a step that was taken.
  void took_step();
  /// After `step` was left out. Throws DivergedError when the scale cannot fall any further.
  void left_out_step(std::int64_t step);
  // The same without a wait for the device.
  /// `left_out` (one number) is 1 for a skipped step, which makes the scale fall, and 0 for others. The scale
  /// does not fall below its minimum.
  void decide(const at::Tensor& left_out);
  /// Checks that the scale can fall after a skipped step. Throws DivergedError if not.
  void require_above_least(double scale, std::int64_t step) const;

  /// By name ("scale", "good_steps"), f64; shared, not copied: restore it in place.
  std::map<std::string, at::Tensor> state();

 private:
  LossScalerOptions options_;
  at::Tensor scale_, good_steps_;
};

/// Divides all gradients by `scale`; false when one of them is not finite. One pass over them.
bool unscale_gradients(const NamedTensors& parameters, double scale);
/// The same for a scale (f64, no dims) that is not read on the host. Returns 1 where a gradient is not
/// finite, else 0: f32, one dim of 1, on the device of the gradients; undefined where no parameter has a
/// gradient.
at::Tensor unscale_gradients(const NamedTensors& parameters, const at::Tensor& scale);

}  // namespace trireme::optim
