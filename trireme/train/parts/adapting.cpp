// train.adapt: the knobs of a run, under one controller (adaptation.h).
#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/train/parts/adaptation.h"
#include "trireme/train/parts/load_balancer.h"
#include "trireme/train/run/run.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {
namespace {

/// How many samples of a batch each replica takes: as data.balance = "dynamic", which judges by itself.
class SharesKnob final : public Knob {
 public:
  SharesKnob(std::unique_ptr<LoadBalancer> shares, DevicePrefetcher& feed)
      : shares_(std::move(shares)), before_(shares_->now()), feed_(feed) {
    feed_.assign_shares(0, shares_->now());
  }
  std::string name() const override { return "shares of replicas"; }
  std::string value() const override { return in_words(shares_->now()); }
  std::optional<Proposal> propose(std::span<const StepReport> window, double step_s) override {
    found_ = shares_->propose(window);
    if (!found_) return std::nullopt;
    return Proposal{.to = in_words(found_->shares),
                    .reason = found_->why,
                    .foretold_s = step_s - (found_->slowest_s - found_->foretold_s)};
  }
  void apply(std::int64_t from) override {
    before_ = shares_->now();
    take(found_->shares, from);
  }
  void revert(std::int64_t from) override { take(before_, from); }
  void start_over(std::int64_t step) override { shares_->start_over(step); }

 private:
  void take(const data::Shares& shares, std::int64_t from) {
    const LoadBalancer::Change change = shares_->change_to(shares, from, "");
    feed_.assign_shares(static_cast<std::uint64_t>(from), change.shares);
  }
  static std::string in_words(const data::Shares& shares) {
    constexpr std::size_t kFew = 8;
    if (shares.size() > kFew) {
      const auto [least, most] = std::ranges::minmax(shares);
      return text(least, " to ", most);
    }
    std::vector<std::string> words;
    for (const std::int64_t share : shares) words.push_back(std::to_string(share));
    return join(words, " ");
  }

  const std::unique_ptr<LoadBalancer> shares_;
  std::optional<LoadBalancer::Proposal> found_;
  data::Shares before_;
  DevicePrefetcher& feed_;
};

class Adapting final : public StepPart {
 public:
  explicit Adapting(const PartSetup& setup) : prefetch_(setup.plan.config().data.prefetch) {}

  void attach(const TrainerObjects& objects) override {
    std::vector<std::unique_ptr<Knob>> knobs;
    if (auto shares = shares_of(objects)) knobs.push_back(std::move(shares));
    controller_.emplace(std::move(knobs));
  }
  /// A change holds from the first step that has not been prefetched.
  void reported(StepReport& report, std::int64_t steps_done) override {
    if (const auto decision = controller_->observe(report, steps_done + prefetch_))
      report.decisions.push_back(*decision);
    decisions_.insert(decisions_.end(), report.decisions.begin(), report.decisions.end());
  }
  void restored(std::int64_t steps_done) override { controller_->start_over(steps_done); }
  void summarize(RunResult& result) const override { result.decisions = decisions_; }

 private:
  static std::unique_ptr<Knob> shares_of(const TrainerObjects& objects) {
    auto shares = LoadBalancer::make(objects.plan);
    if (!shares) return nullptr;
    try {
      return std::make_unique<SharesKnob>(std::move(shares), objects.batches.feed());
    } catch (const InvalidArgument&) {
      if (objects.plan.config().data.balance == "dynamic") throw;
      return nullptr;  // a stream of one's own, whose shares stay
    }
  }

  const std::int64_t prefetch_;
  std::optional<AdaptiveController> controller_;
  std::vector<Decision> decisions_;
};

}  // namespace

std::unique_ptr<StepPart> make_adapting(const PartSetup& setup) {
  return setup.plan.config().train.adapt ? std::make_unique<Adapting>(setup) : nullptr;
}

}  // namespace trireme::train
