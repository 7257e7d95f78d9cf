// data.balance = "dynamic": slower replicas get fewer samples (load_balancer.h).
#include "trireme/train/parts/load_balancer.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {
namespace {

class LoadBalancing final : public StepPart {
 public:
  LoadBalancing(std::unique_ptr<LoadBalancer> shares, const PartSetup& setup)
      : shares_(std::move(shares)), context_(setup.context), prefetch_(setup.plan.config().data.prefetch) {}

  void attach(const TrainerObjects& objects) override {
    feed_ = &objects.batches.feed();
    feed_->assign_shares(0, shares_->now());
  }
  /// New shares apply from the first step that has not been prefetched.
  void reported(StepReport& report, std::int64_t steps_done) override {
    const auto change = shares_->observe(report, steps_done + prefetch_);
    if (!change) return;
    feed_->assign_shares(static_cast<std::uint64_t>(change->from), change->shares);
    if (context_.is_main()) context_.log().info("data: ", change->why);
  }
  void restored(std::int64_t steps_done) override { shares_->start_over(steps_done); }

 private:
  const std::unique_ptr<LoadBalancer> shares_;
  comm::Context& context_;
  const std::int64_t prefetch_;
  DevicePrefetcher* feed_ = nullptr;
};

}  // namespace

std::unique_ptr<StepPart> make_load_balancing(const PartSetup& setup) {
  if (setup.plan.config().train.adapt) return nullptr;  // it is a knob of adapting.cpp then
  auto shares = LoadBalancer::make(setup.plan);
  return shares ? std::make_unique<LoadBalancing>(std::move(shares), setup) : nullptr;
}

}  // namespace trireme::train
