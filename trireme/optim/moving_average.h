#pragma once
// Exponential moving average of parameters (Polyak and Juditsky, 1992, with PyTorch's
// swa_utils.get_ema_multi_avg_fn as the definition): average += (1 - decay) * (parameter - average) after
// each step, beginning with the parameters as they are when it is made. Buffers are not averaged. Where all
// ranks hold the same parameters they hold the same averages, without communication. Averages of parameters
// in half precision are kept in f32. Not thread-safe.

#include "trireme/optim/optimizer.h"

namespace trireme::optim {

class ExponentialMovingAverage {
 public:
  /// Averages remember about 1 / (1 - decay) steps. Throws InvalidArgument: decay outside [0, 1).
  ExponentialMovingAverage(NamedTensors parameters, double decay);

  /// Takes in the parameters as they are. Call it after every optimizer step. One foreach call. Throws
  /// InvalidArgument while the averages are swapped in.
  void update() { update({}); }
  /// The same, left out where `leave_out` (f32, no dims, on their device) is 1 and not 0: the averages then
  /// keep their values. Undefined: taken.
  void update(const at::Tensor& leave_out);

  /// State tensors by name ("average/fc1.weight"); shared, not copied: restore them in place. Throws
  /// InvalidArgument while the averages are swapped in.
  std::map<std::string, at::Tensor> state();

  /// While it lives, the parameters hold the averages; then they have their own bits again. Values are
  /// exchanged in place, so that views of a parameter, a flat buffer for instance, see them too. One at a
  /// time.
  class SwapScope {
   public:
    explicit SwapScope(ExponentialMovingAverage& average);
    ~SwapScope();
    SwapScope(const SwapScope&) = delete;
    SwapScope& operator=(const SwapScope&) = delete;

   private:
    ExponentialMovingAverage& average_;
  };
  /// const auto scope = average.swap_in(); evaluate(model);
  [[nodiscard]] SwapScope swap_in() { return SwapScope(*this); }

 private:
  void require_not_swapped(const char* what) const;
  void exchange();

  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_, averages_;
  std::vector<at::Tensor> set_aside_;  ///< while swapped in: the values of parameters in half precision
  double decay_;
  bool swapped_ = false;
};

}  // namespace trireme::optim
