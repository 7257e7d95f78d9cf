// train.adapt: the knobs of a run, under one controller (adaptation.h), and train.batch_ramp_by = "noise".
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/checkpoint/checkpoint_part.h"
#include "trireme/parallel/data/comm_hook.h"
#include "trireme/train/config/batch_ramp.h"
#include "trireme/train/parts/adaptation.h"
#include "trireme/train/parts/batch_growth.h"
#include "trireme/train/parts/internal/compression_knob.h"
#include "trireme/train/parts/load_balancer.h"
#include "trireme/train/run/run.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {
namespace {

/// Samples of a batch for each replica, as with data.balance = "dynamic", which judges its own changes.
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
                    .estimated_s = step_s - (found_->slowest_s - found_->estimated_s)};
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
  explicit Adapting(const PartSetup& setup) : context_(setup.context), config_(setup.plan.config()) {
    if (grows_with_noise(config_.train)) {
      growth_.emplace(config_.train);
      ends_ = at::zeros({std::ssize(config_.train.batch_ramp_sizes)}, at::kLong);
    }
  }

  void configure(PipelineSetup& setup) override {
    const bool tunes = config_.parallel.priority != "none" && config_.parallel.slice_kib == 0;
    if (!config_.train.adapt) return;
    if (tunes) slices_ = setup.options.data_parallel.hook;
    compression_ = std::dynamic_pointer_cast<parallel::SwitchedHook>(setup.options.data_parallel.hook);
  }
  void attach(const TrainerObjects& objects) override {
    batches_ = &objects.batches;
    if (growth_) batches_->change_ramp(0, batch_ramp(config_.train));
    std::vector<std::unique_ptr<Knob>> knobs;
    if (auto shares = config_.train.adapt ? shares_of(objects) : nullptr) knobs.push_back(std::move(shares));
    if (auto compression = compression_of(objects)) {
      compression_knob_ = compression.get();
      knobs.push_back(std::move(compression));
    }
    controller_.emplace(std::move(knobs));
  }
  void begin_step(Step& step) override {
    if (compression_knob_ != nullptr) compression_knob_->begin_step(step.report.step - 1);
  }
  void skipped(Step& /*step*/) override {
    if (compression_knob_ != nullptr) compression_knob_->skipped();
  }
  void reported(StepReport& report, std::int64_t steps_done) override {
    // New shares apply from the first step that has not been prefetched.
    const std::int64_t from = steps_done + config_.data.prefetch;
    if (growth_) grow(report);
    if (slices_) note_slices(report, from);
    const std::vector<Decision> decisions =
        slices_ ? std::vector<Decision>{} : controller_->observe(report, from);
    report.decisions.insert(report.decisions.end(), decisions.begin(), decisions.end());
    if (config_.train.adapt && context_.is_main()) note_loading(report);
    decisions_.insert(decisions_.end(), report.decisions.begin(), report.decisions.end());
  }
  void add_state(StateParts& state) override {
    if (!growth_) return;
    state.push_back(state_part(text(checkpoint::kOptimizerPrefix, "batch/"), {{"ends", ends_}}, {}));
  }
  void restored(std::int64_t steps_done) override {
    controller_->start_over(steps_done);
    if (!growth_) return;
    std::vector<std::int64_t> ends;
    for (std::int64_t i = 0; i < ends_.numel(); ++i) {
      const std::int64_t end = ends_.const_data_ptr<std::int64_t>()[i];
      if (end > 0) ends.push_back(end);
    }
    growth_->restore(std::move(ends));
    batches_->change_ramp(steps_done, ramp_so_far(config_.train, growth_->ends()));
  }
  void summarize(RunResult& result) const override { result.decisions = decisions_; }

 private:
  static std::unique_ptr<Knob> shares_of(const TrainerObjects& objects) {
    auto shares = LoadBalancer::make(objects.plan);
    if (!shares) return nullptr;
    try {
      return std::make_unique<SharesKnob>(std::move(shares), objects.batches.feed());
    } catch (const InvalidArgument&) {
      if (objects.plan.config().data.balance == "dynamic") throw;
      return nullptr;  // a custom stream with fixed shares
    }
  }

  std::unique_ptr<CompressionKnob> compression_of(const TrainerObjects& objects) const {
    const auto& copies = objects.groups.copies;
    if (!compression_ || !copies || copies->size() == 1) return nullptr;
    return std::make_unique<CompressionKnob>(compression_, config_.parallel.compression,
                                             measure_exchanges(objects, *copies));
  }

  /// At a step that follows from the report alone: a run that saved in between, and so knows it earlier, or
  /// was resumed has the same batches. Reports are two steps late at most.
  void grow(StepReport& report) {
    constexpr std::int64_t kLate = 3;
    const std::int64_t from = report.step + config_.data.prefetch + kLate, before = growth_->size();
    const auto why = growth_->observe(report, from);
    if (!why) return;
    const std::vector<std::int64_t>& ends = growth_->ends();
    ends_.data_ptr<std::int64_t>()[ends.size() - 1] = ends.back();
    batches_->change_ramp(from, ramp_so_far(config_.train, ends));
    if (const auto undone = controller_->disturb(report.step, from, "the size of the batch changed"))
      report.decisions.push_back(*undone);
    report.decisions.push_back({.step = report.step,
                                .from_step = from + 1,
                                .knob = "global batch",
                                .verdict = Verdict::kSet,
                                .from = text(before),
                                .to = text(growth_->size()),
                                .reason = *why});
  }
  /// The hook times slice sizes in the first steps, apart from the controller.
  void note_slices(StepReport& report, std::int64_t from) {
    const std::string found = slices_->found();
    if (found.empty()) return;
    slices_.reset();
    controller_->disturb(report.step, from, "the size of slices changed");
    report.decisions.push_back({.step = report.step,
                                .from_step = report.step + 1,
                                .knob = "slices of gradients",
                                .verdict = Verdict::kSet,
                                .from = "tried sizes",
                                .to = found,
                                .reason = "each size was timed in the first steps"});
  }
  /// Each rank's loader tunes its own threads. Here its changes are reported.
  void note_loading(StepReport& report) {
    const data::LoadingReport now = batches_->feed().report();
    if (now.last_change == loading_.last_change) return;
    const auto in_words = [](int workers, int prefetch) {
      return text(workers, workers == 1 ? " thread, " : " threads, ", prefetch, " steps");
    };
    const std::string before = loading_.workers == 0 ? in_words(1, static_cast<int>(config_.data.prefetch))
                                                     : in_words(loading_.workers, loading_.prefetch);
    report.decisions.push_back({.step = report.step,
                                .from_step = report.step + 1,
                                .knob = "loading on rank 0",
                                .verdict = Verdict::kSet,
                                .from = before,
                                .to = in_words(now.workers, now.prefetch),
                                .reason = now.last_change});
    loading_ = now;
  }

  comm::Context& context_;
  const RunConfig config_;
  BatchFeed* batches_ = nullptr;
  std::optional<AdaptiveController> controller_;
  std::optional<BatchGrowth> growth_;
  at::Tensor ends_;  ///< of sizes of the batch: a step each, 0 while it is not known
  std::shared_ptr<parallel::CommHook> slices_;           ///< while it tries sizes
  std::shared_ptr<parallel::SwitchedHook> compression_;  ///< null: it stays as it is
  CompressionKnob* compression_knob_ = nullptr;          ///< the controller's
  data::LoadingReport loading_;                          ///< at its last change
  std::vector<Decision> decisions_;
};

}  // namespace

std::unique_ptr<StepPart> make_adapting(const PartSetup& setup) {
  const TrainOptions& train = setup.plan.config().train;
  return train.adapt || grows_with_noise(train) ? std::make_unique<Adapting>(setup) : nullptr;
}

}  // namespace trireme::train
