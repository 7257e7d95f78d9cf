#pragma once
// The state of libtorch's learning-rate schedulers. They give no access to it, and the rates themselves are
// the optimizer's. A scheduler of your own that keeps more than torch::optim::LRScheduler does saves that by
// itself (LoopOptions::others). Values that refer to a scheduler; one thread.

#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <variant>

#include "trireme/checkpoint/safetensors.h"

namespace trireme::checkpoint {

class LoopScheduler {
 public:
  /// torch::optim::StepLR and others that derive from it: the number of its steps.
  LoopScheduler(torch::optim::LRScheduler* scheduler)  // NOLINT(google-explicit-constructor)
      : scheduler_(scheduler) {}
  /// Its best metric, its steps, those in a row that were no better, and the rest of its cooldown.
  LoopScheduler(torch::optim::ReduceLROnPlateauScheduler* scheduler)  // NOLINT(google-explicit-constructor)
      : scheduler_(scheduler) {}

  /// Copies: whole numbers of type i64 and the metric of type f64, each without dims.
  TensorMap state() const;
  /// Throws what restore() would throw for a state of these names and dtypes.
  void check_fits(const TensorMap& state) const;
  /// The scheduler continues from there. Throws DataError where the state is another type's.
  void restore(const TensorMap& state) const;

 private:
  std::variant<torch::optim::LRScheduler*, torch::optim::ReduceLROnPlateauScheduler*> scheduler_;
};

}  // namespace trireme::checkpoint
