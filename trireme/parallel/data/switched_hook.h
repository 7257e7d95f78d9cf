#pragma once
// A gradient compression that can be switched off and on between steps. Residuals are not lost: in the first
// step without compression each rank adds them to its gradients. One thread.

#include <memory>
#include <set>
#include <string>

#include "trireme/parallel/data/comm_hook.h"

namespace trireme::parallel {

/// Whether SwitchedHook works with it: not with a compression that has the momentum, or none.
bool can_switch(const CompressionOptions& options);

/// Collective as the hook that it switches. State, memory and description are those of that hook.
class SwitchedHook final : public CommHook {
 public:
  /// With compression. Throws InvalidArgument as make_comm_hook() does, and where can_switch() is false.
  explicit SwitchedHook(const CompressionOptions& options);

  /// From the next reduction on; between steps, at the same step on all ranks. Call it again after the state
  /// has been changed from outside.
  void set_compressing(bool compresses);
  bool is_compressing() const { return compresses_; }

  void prepare(const comm::Group& group, const optim::NamedTensors& parameters) override;
  void set_gradient_scale(double scale) override { compression_->set_gradient_scale(scale); }
  std::function<void()> start(comm::Group& group, GradientBucket& bucket, ReduceScale scale) override;
  HookState state() override { return compression_->state(); }
  void restored() override {
    compression_->restored();
    set_compressing(compresses_);
  }
  comm::Group memory_of(const comm::Group& group) const override { return compression_->memory_of(group); }
  std::string describe() const override { return compression_->describe(); }
  std::int64_t sent_bytes() const override { return compression_->sent_bytes() + plain_->sent_bytes(); }

 private:
  const std::shared_ptr<CommHook> compression_, plain_;
  bool compresses_ = true;
  std::set<std::string> parameters_;  ///< all
  std::set<std::string> unreleased_;  ///< those whose residuals are still to be added, while it is off
};

}  // namespace trireme::parallel
