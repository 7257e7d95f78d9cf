#include "trireme/train/step/step_reports.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/data/loading_report.h"

namespace trireme::train {
namespace {

enum Slot {
  kLoss,
  kCount,
  kSeconds,
  kSkipped,
  kInterrupts,
  kTerminations,
  kNextWorlds,
  kSquaresOfParts,
  kSquaresOfShares,
  kSquareOfMean,
  kFirstRank
};

/// A rank's state. The norm is that of gradients that all ranks have reduced. If a rank's loss is not finite,
/// the norm gives no further information.
constexpr double kFine = 0, kNormIsNotFinite = 1, kLossIsNotFinite = 2;

/// Values per rank, by kind: those of all ranks for one kind are contiguous.
enum PerRank { kNotFinite, kDataWait, kDataStage, kWork, kNumPerRank };

/// Duration of a bundle's steps, about that of an exchange over a link of 50 ms.
constexpr double kBundleSeconds = 0.25;
constexpr std::size_t kMaxInBundle = 64;

/// 0: no stage is reported.
double code_of(std::string_view stage) {
  for (std::size_t i = 0; i < data::kNumStages; ++i) {
    if (stage == data::name_of(static_cast<data::Stage>(i))) return static_cast<double>(i + 1);
  }
  return 0;
}

std::string_view stage_of(double code) {
  return code == 0 ? "" : data::name_of(static_cast<data::Stage>(std::lround(code) - 1));
}

std::string ranks_to_blame(const double* slots, int num_ranks) {
  const double worst = *std::max_element(slots, slots + num_ranks);
  std::vector<std::string> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (worst != kFine && slots[rank] == worst) ranks.push_back(std::to_string(rank));
  }
  return join(ranks);
}

}  // namespace

StepReports::StepReports(comm::Group group, int depth, Bundling bundling, Numbers numbers)
    : group_(std::move(group)),
      depth_(static_cast<std::size_t>(depth)),
      bundling_(bundling),
      numbers_(numbers) {
  const std::size_t most = bundling == Bundling::kNone ? 1 : kMaxInBundle;
  for (int i = 0; i <= depth; ++i)
    spare_.push_back(group_.allocate(static_cast<std::int64_t>(most) * num_slots(), at::kDouble));
}

std::int64_t StepReports::num_slots() const { return kFirstRank + kNumPerRank * group_.size(); }

void StepReports::write(const StepReport& mine, double* slots) const {
  const auto own = [&](PerRank kind) -> double& {
    return slots[kFirstRank + kind * group_.size() + group_.rank()];
  };
  std::fill_n(slots, num_slots(), 0.0);
  slots[kCount] = mine.own_count.value_or(0);
  slots[kSeconds] = began_s_ > 0 ? now_s() - began_s_ : 0;
  if (std::isfinite(mine.loss) && std::isfinite(mine.grad_norm.value_or(0))) {
    slots[kLoss] = mine.loss;
  } else if (mine.skipped) {
    slots[kSkipped] = 1;
  } else {
    own(kNotFinite) = std::isfinite(mine.loss) ? kNormIsNotFinite : kLossIsNotFinite;
  }
  slots[kInterrupts] = mine.stop_signal == SIGINT;
  slots[kTerminations] = mine.stop_signal == SIGTERM;
  slots[kNextWorlds] = mine.stop_signal == kNextWorld;
  if (mine.squares) {
    slots[kSquaresOfParts] = mine.squares->of_parts;
    slots[kSquaresOfShares] = mine.squares->shares;
    if (group_.rank() == 0) slots[kSquareOfMean] = mine.squares->of_mean;  // all ranks have the same value
  }
  if (!mine.data_waits.empty()) {
    own(kDataWait) = mine.data_waits.front().seconds;
    own(kDataStage) = code_of(mine.data_waits.front().stage);
  }
  if (!mine.work_s.empty()) own(kWork) = mine.work_s.front();
}

StepReport StepReports::Unread::complete() {
  for (const auto& completion : completions) completion(report);
  return std::move(report);
}

std::optional<StepReport> StepReports::start(StepReport mine, Completions completions) {
  Unread unread{.report = std::move(mine), .completions = std::move(completions)};
  if (numbers_ == Numbers::kAtOnce) {
    add(unread.complete());
  } else if (std::optional<Unread> before = std::exchange(unread_, std::move(unread))) {
    add(before->complete());
  }
  if (ready_.empty()) return std::nullopt;
  return told();
}

void StepReports::add(const StepReport& mine) {
  if (is_due(filling_.reports.size() + 1) && under_way_.size() == depth_) complete();
  if (filling_.reports.empty()) {
    filling_.slots = std::move(spare_.back());
    spare_.pop_back();
  }
  write(mine,
        filling_.slots.data_ptr<double>() + static_cast<std::int64_t>(filling_.reports.size()) * num_slots());
  began_s_ = now_s();
  filling_.reports.push_back(mine);
  if (is_due(filling_.reports.size())) send();
}

void StepReports::send() {
  at::Tensor slots =
      filling_.slots.narrow(0, 0, static_cast<std::int64_t>(filling_.reports.size()) * num_slots());
  filling_.pending = group_.all_reduce_async(slots);
  under_way_.push_back(std::exchange(filling_, {}));
}

/// Completes the oldest exchange. All ranks get the same duration of its steps, so they choose the same
/// bundle size.
void StepReports::complete() {
  Exchange exchange = std::move(under_way_.front());
  under_way_.pop_front();
  exchange.pending.wait();
  spare_.push_back(exchange.slots);
  const double* slots = exchange.slots.const_data_ptr<double>();
  double seconds = 0;
  for (StepReport& report : exchange.reports) {
    ready_.push_back({.report = std::move(report), .slots = {slots, slots + num_slots()}});
    seconds += slots[kSeconds] / group_.size();
    slots += num_slots();
  }
  if (bundling_ == Bundling::kNone || seconds <= 0) return;
  const double steps = kBundleSeconds / seconds * static_cast<double>(exchange.reports.size());
  max_in_bundle_ = std::clamp<std::size_t>(static_cast<std::size_t>(std::min(steps, 1e3)), 1, kMaxInBundle);
}

std::optional<StepReport> StepReports::finish() {
  if (ready_.empty()) {
    if (std::optional<Unread> last = std::exchange(unread_, std::nullopt)) add(last->complete());
    if (under_way_.empty() && !filling_.reports.empty()) send();
    if (under_way_.empty()) return std::nullopt;
    complete();
  }
  return told();
}

StepReport StepReports::told() {
  const Ready oldest = std::move(ready_.front());
  ready_.pop_front();
  StepReport report = oldest.report;
  const double* slots = oldest.slots.data();
  const std::string diverged = ranks_to_blame(slots + kFirstRank, group_.size());
  if (!diverged.empty()) {
    throw DivergedError(text("step ", report.step,
                             ": the loss or the gradient is not a finite number on rank ", diverged,
                             " (learning rate ", report.lr,
                             "); lower optimizer.lr, warm up (lr.warmup_steps) or clip (train.clip_norm)"));
  }
  if (report.squares) {
    report.squares->of_parts = slots[kSquaresOfParts];
    report.squares->shares = slots[kSquaresOfShares];
    report.squares->of_mean = slots[kSquareOfMean];
  }
  report.data_waits.clear();
  report.work_s.clear();
  for (int rank = 0; rank < group_.size(); ++rank) {
    const auto of_rank = [&](PerRank kind) { return slots[kFirstRank + kind * group_.size() + rank]; };
    report.data_waits.push_back({.seconds = of_rank(kDataWait), .stage = stage_of(of_rank(kDataStage))});
    report.work_s.push_back(of_rank(kWork));
  }
  report.step_s = slots[kSeconds] / group_.size();
  report.loss = slots[kSkipped] > 0 ? std::numeric_limits<double>::quiet_NaN() : slots[kLoss];
  if (slots[kCount] > 0) {
    report.loss /= slots[kCount];
    report.count = slots[kCount];
  }
  report.stop_signal = slots[kTerminations] > 0 ? SIGTERM
                       : slots[kInterrupts] > 0 ? SIGINT
                       : slots[kNextWorlds] > 0 ? kNextWorld
                                                : 0;
  return report;
}

}  // namespace trireme::train
