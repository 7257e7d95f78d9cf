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
  kHoles,
  kInterrupts,
  kTerminations,
  kNextWorlds,
  kSquaresOfParts,
  kSquaresOfShares,
  kSquareOfMean,
  kFirstRank
};

/// What a rank says of itself. The norm is one of gradients that all ranks have reduced: where a loss tells
/// whose numbers began it, the norm says nothing more.
constexpr double kFine = 0, kNormIsNotFinite = 1, kLossIsNotFinite = 2;

/// What a rank says, by kind: of each the values of all ranks, one behind the other.
enum PerRank { kNotFinite, kDataWait, kDataStage, kWork, kNumPerRank };

/// Of a bundle: an exchange over a link of 50 ms takes about as long.
constexpr double kBundleSeconds = 0.25;
constexpr std::size_t kMostInBundle = 64;

/// 0: not told.
double code_of(std::string_view stage) {
  for (std::size_t i = 0; i < data::kNumStages; ++i) {
    if (stage == data::name_of(static_cast<data::Stage>(i))) return static_cast<double>(i + 1);
  }
  return 0;
}

std::string_view stage_of(double code) {
  return code == 0 ? "" : data::name_of(static_cast<data::Stage>(std::lround(code) - 1));
}

std::string ranks_to_blame(const double* votes, int num_ranks) {
  const double worst = *std::max_element(votes, votes + num_ranks);
  std::vector<std::string> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (worst != kFine && votes[rank] == worst) ranks.push_back(std::to_string(rank));
  }
  return join(ranks);
}

}  // namespace

StepReports::StepReports(comm::Group group, int depth, Bundling bundling, Numbers numbers)
    : group_(std::move(group)),
      depth_(static_cast<std::size_t>(depth)),
      bundling_(bundling),
      numbers_(numbers) {
  const std::size_t most = bundling == Bundling::kNone ? 1 : kMostInBundle;
  for (int i = 0; i <= depth; ++i)
    spare_.push_back(group_.allocate(static_cast<std::int64_t>(most) * num_votes(), at::kDouble));
}

std::int64_t StepReports::num_votes() const { return kFirstRank + kNumPerRank * group_.size(); }

void StepReports::write(const StepReport& mine, double* votes) const {
  const auto own = [&](PerRank kind) -> double& {
    return votes[kFirstRank + kind * group_.size() + group_.rank()];
  };
  std::fill_n(votes, num_votes(), 0.0);
  votes[kCount] = mine.own_count.value_or(0);
  votes[kSeconds] = began_s_ > 0 ? now_s() - began_s_ : 0;
  if (std::isfinite(mine.loss) && std::isfinite(mine.grad_norm.value_or(0))) {
    votes[kLoss] = mine.loss;
  } else if (mine.skipped) {
    votes[kHoles] = 1;
  } else {
    own(kNotFinite) = std::isfinite(mine.loss) ? kNormIsNotFinite : kLossIsNotFinite;
  }
  votes[kInterrupts] = mine.stop_signal == SIGINT;
  votes[kTerminations] = mine.stop_signal == SIGTERM;
  votes[kNextWorlds] = mine.stop_signal == kNextWorld;
  if (mine.squares) {
    votes[kSquaresOfParts] = mine.squares->of_parts;
    votes[kSquaresOfShares] = mine.squares->shares;
    if (group_.rank() == 0) votes[kSquareOfMean] = mine.squares->of_mean;  // all have it
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
  if (told_.empty()) return std::nullopt;
  return told();
}

void StepReports::add(const StepReport& mine) {
  if (is_due(filling_.reports.size() + 1) && under_way_.size() == depth_) land();
  if (filling_.reports.empty()) {
    filling_.votes = std::move(spare_.back());
    spare_.pop_back();
  }
  write(mine,
        filling_.votes.data_ptr<double>() + static_cast<std::int64_t>(filling_.reports.size()) * num_votes());
  began_s_ = now_s();
  filling_.reports.push_back(mine);
  if (is_due(filling_.reports.size())) send();
}

void StepReports::send() {
  at::Tensor votes =
      filling_.votes.narrow(0, 0, static_cast<std::int64_t>(filling_.reports.size()) * num_votes());
  filling_.pending = group_.all_reduce_async(votes);
  under_way_.push_back(std::exchange(filling_, {}));
}

/// The oldest exchange. What its steps took is the same number on all ranks, and so is what follows from it.
void StepReports::land() {
  Exchange exchange = std::move(under_way_.front());
  under_way_.pop_front();
  exchange.pending.wait();
  spare_.push_back(exchange.votes);
  const double* votes = exchange.votes.const_data_ptr<double>();
  double seconds = 0;
  for (StepReport& report : exchange.reports) {
    told_.push_back({.report = std::move(report), .votes = {votes, votes + num_votes()}});
    seconds += votes[kSeconds] / group_.size();
    votes += num_votes();
  }
  if (bundling_ == Bundling::kNone || seconds <= 0) return;
  const double steps = kBundleSeconds / seconds * static_cast<double>(exchange.reports.size());
  most_in_bundle_ = std::clamp<std::size_t>(static_cast<std::size_t>(std::min(steps, 1e3)), 1, kMostInBundle);
}

std::optional<StepReport> StepReports::finish() {
  if (told_.empty()) {
    if (std::optional<Unread> last = std::exchange(unread_, std::nullopt)) add(last->complete());
    if (under_way_.empty() && !filling_.reports.empty()) send();
    if (under_way_.empty()) return std::nullopt;
    land();
  }
  return told();
}

StepReport StepReports::told() {
  const Told oldest = std::move(told_.front());
  told_.pop_front();
  StepReport report = oldest.report;
  const double* votes = oldest.votes.data();
  const std::string diverged = ranks_to_blame(votes + kFirstRank, group_.size());
  if (!diverged.empty()) {
    throw DivergedError(text("step ", report.step,
                             ": the loss or the gradient is not a finite number on rank ", diverged,
                             " (learning rate ", report.lr,
                             "); lower optimizer.lr, warm up (lr.warmup_steps) or clip (train.clip_norm)"));
  }
  if (report.squares) {
    report.squares->of_parts = votes[kSquaresOfParts];
    report.squares->shares = votes[kSquaresOfShares];
    report.squares->of_mean = votes[kSquareOfMean];
  }
  report.data_waits.clear();
  report.work_s.clear();
  for (int rank = 0; rank < group_.size(); ++rank) {
    const auto of_rank = [&](PerRank kind) { return votes[kFirstRank + kind * group_.size() + rank]; };
    report.data_waits.push_back({.seconds = of_rank(kDataWait), .stage = stage_of(of_rank(kDataStage))});
    report.work_s.push_back(of_rank(kWork));
  }
  report.loss = votes[kHoles] > 0 ? std::numeric_limits<double>::quiet_NaN() : votes[kLoss];
  if (votes[kCount] > 0) {
    report.loss /= votes[kCount];
    report.count = votes[kCount];
  }
  report.stop_signal = votes[kTerminations] > 0 ? SIGTERM
                       : votes[kInterrupts] > 0 ? SIGINT
                       : votes[kNextWorlds] > 0 ? kNextWorld
                                                : 0;
  return report;
}

}  // namespace trireme::train
