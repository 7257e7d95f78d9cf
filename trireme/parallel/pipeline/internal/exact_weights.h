#pragma once
// Whole weights of a stage whose gradients are added up in one order (data/exact_sum.h), with or
// without replicas. Collective among the replicas. One thread.

#include <optional>

#include "trireme/parallel/data/exact_sum.h"
#include "trireme/parallel/pipeline/internal/stage_weights.h"

namespace trireme::parallel {

class ExactWeights final : public StageWeights {
 public:
  /// Replicas get the values of the first one. Throws CommError: they are none of each other.
  ExactWeights(std::optional<comm::Group> data, const Replica& replica, const DataParallelOptions& options);

  void begin(const schedule::Program& /*program*/, int /*rank*/) override { sum_.begin(); }
  void after(const schedule::Action& action) override {
    if (schedule::makes_weight_gradient(action.kind)) sum_.add(action.microbatch);
  }
  void finish() override { sum_.finish(); }
  double waited_s() const override { return sum_.waited_s(); }

 private:
  ExactSum sum_;
};

}  // namespace trireme::parallel
