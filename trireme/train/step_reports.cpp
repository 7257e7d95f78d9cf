#include "trireme/train/step_reports.h"

#include <cmath>
#include <csignal>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::train {
namespace {

enum Slot { kLoss, kHoles, kInterrupts, kTerminations, kFirstRank };

}  // namespace

StepReports::StepReports(comm::Group group)
    : group_(std::move(group)), votes_(group_.allocate(kFirstRank + group_.size(), at::kDouble)) {}

void StepReports::start(const StepReport& mine) {
  double* votes = votes_.data_ptr<double>();
  std::fill_n(votes, votes_.numel(), 0.0);
  if (std::isfinite(mine.loss) && std::isfinite(mine.grad_norm.value_or(0))) {
    votes[kLoss] = mine.loss;
  } else if (mine.skipped) {
    votes[kHoles] = 1;
  } else {
    votes[kFirstRank + group_.rank()] = 1;
  }
  votes[kInterrupts] = mine.stop_signal == SIGINT;
  votes[kTerminations] = mine.stop_signal == SIGTERM;
  report_ = mine;
  pending_ = group_.all_reduce_async(votes_);
}

std::optional<StepReport> StepReports::finish() {
  if (!report_) return std::nullopt;
  StepReport report = *std::exchange(report_, std::nullopt);
  pending_.wait();
  const double* votes = votes_.data_ptr<double>();
  std::vector<std::string> diverged;
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (votes[kFirstRank + rank] > 0) diverged.push_back(std::to_string(rank));
  }
  if (!diverged.empty()) {
    throw DivergedError(text("step ", report.step,
                             ": the loss or the gradient is not a finite number on rank ", join(diverged),
                             " (learning rate ", report.lr,
                             "); lower optimizer.lr, warm up (lr.warmup_steps) or clip (train.clip_norm)"));
  }
  report.loss = votes[kHoles] > 0 ? std::numeric_limits<double>::quiet_NaN() : votes[kLoss];
  report.stop_signal = votes[kTerminations] > 0 ? SIGTERM : votes[kInterrupts] > 0 ? SIGINT : 0;
  return report;
}

}  // namespace trireme::train
