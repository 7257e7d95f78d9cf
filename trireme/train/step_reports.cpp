#include "trireme/train/step_reports.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/data/loading_report.h"

namespace trireme::train {
namespace {

enum Slot { kLoss, kHoles, kInterrupts, kTerminations, kFirstRank };

/// What a rank says of itself. The norm is one of gradients that all ranks have reduced: where a loss tells
/// whose numbers began it, the norm says nothing more.
constexpr double kFine = 0, kNormIsNotFinite = 1, kLossIsNotFinite = 2;

/// What a rank says, by kind: of each the values of all ranks, one behind the other.
enum PerRank { kNotFinite, kDataWait, kDataStage, kNumPerRank };

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

StepReports::StepReports(comm::Group group, int depth)
    : group_(std::move(group)), depth_(static_cast<std::size_t>(depth)) {
  for (int i = 0; i < depth; ++i)
    spare_.push_back(group_.allocate(kFirstRank + kNumPerRank * group_.size(), at::kDouble));
}

std::optional<StepReport> StepReports::start(const StepReport& mine) {
  std::optional<StepReport> oldest;
  if (under_way_.size() == depth_) oldest = finish();
  Exchange exchange{.report = mine, .votes = std::move(spare_.back()), .pending = {}};
  spare_.pop_back();
  double* votes = exchange.votes.data_ptr<double>();
  const auto own = [&](PerRank kind) -> double& {
    return votes[kFirstRank + kind * group_.size() + group_.rank()];
  };
  std::fill_n(votes, exchange.votes.numel(), 0.0);
  if (std::isfinite(mine.loss) && std::isfinite(mine.grad_norm.value_or(0))) {
    votes[kLoss] = mine.loss;
  } else if (mine.skipped) {
    votes[kHoles] = 1;
  } else {
    own(kNotFinite) = std::isfinite(mine.loss) ? kNormIsNotFinite : kLossIsNotFinite;
  }
  votes[kInterrupts] = mine.stop_signal == SIGINT;
  votes[kTerminations] = mine.stop_signal == SIGTERM;
  if (!mine.data_waits.empty()) {
    own(kDataWait) = mine.data_waits.front().seconds;
    own(kDataStage) = code_of(mine.data_waits.front().stage);
  }
  exchange.pending = group_.all_reduce_async(exchange.votes);
  under_way_.push_back(std::move(exchange));
  return oldest;
}

std::optional<StepReport> StepReports::finish() {
  if (under_way_.empty()) return std::nullopt;
  Exchange exchange = std::move(under_way_.front());
  under_way_.pop_front();
  exchange.pending.wait();
  StepReport report = exchange.report;
  spare_.push_back(exchange.votes);
  const double* votes = exchange.votes.const_data_ptr<double>();
  const std::string diverged = ranks_to_blame(votes + kFirstRank, group_.size());
  if (!diverged.empty()) {
    throw DivergedError(text("step ", report.step,
                             ": the loss or the gradient is not a finite number on rank ", diverged,
                             " (learning rate ", report.lr,
                             "); lower optimizer.lr, warm up (lr.warmup_steps) or clip (train.clip_norm)"));
  }
  report.data_waits.clear();
  for (int rank = 0; rank < group_.size(); ++rank) {
    const auto of_rank = [&](PerRank kind) { return votes[kFirstRank + kind * group_.size() + rank]; };
    report.data_waits.push_back({.seconds = of_rank(kDataWait), .stage = stage_of(of_rank(kDataStage))});
  }
  report.loss = votes[kHoles] > 0 ? std::numeric_limits<double>::quiet_NaN() : votes[kLoss];
  report.stop_signal = votes[kTerminations] > 0 ? SIGTERM : votes[kInterrupts] > 0 ? SIGINT : 0;
  return report;
}

}  // namespace trireme::train
