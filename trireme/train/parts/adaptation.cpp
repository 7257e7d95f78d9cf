#include "trireme/train/parts/adaptation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

#include "trireme/base/median.h"
#include "trireme/base/text.h"
#include "trireme/train/parts/internal/milliseconds.h"

namespace trireme::train {
namespace {

/// A change has to save this share of a step, and this many standard errors of the difference.
constexpr double kLeastGain = 0.02, kErrors = 2;
constexpr int kMaxPatience = 64;  ///< windows

}  // namespace

std::string_view name_of(Verdict verdict) {
  constexpr std::array<std::string_view, 5> kNames = {"tried", "kept", "reverted", "set", "skipped"};
  return kNames.at(static_cast<std::size_t>(verdict));
}

std::string describe(const Decision& decision) {
  return text("adapt: ", decision.knob, " ", decision.from, " -> ", decision.to, " (",
              name_of(decision.verdict), " from step ", decision.from_step, "): ", decision.reason);
}

/// Errors of a normal distribution. The error of a median is 1.25 times that of a mean. A standard deviation
/// is 1.48 times the median distance.
AdaptiveController::Level AdaptiveController::level_of(std::span<const StepReport> window) {
  std::vector<double> seconds, distances;
  for (const StepReport& report : window) seconds.push_back(report.step_s);
  const double median_s = median(seconds);
  for (const double each : seconds) distances.push_back(std::abs(each - median_s));
  constexpr double kOfMedian = 1.2533 * 1.4826;
  return {.median_s = median_s,
          .error_s = kOfMedian * median(distances) / std::sqrt(static_cast<double>(window.size()))};
}

double AdaptiveController::least_gain_s(const Level& before, const Level& after) {
  const double spread_s = kErrors * std::hypot(before.error_s, after.error_s);
  return std::max(kLeastGain * before.median_s, spread_s);
}

std::vector<Decision> AdaptiveController::observe(const StepReport& report, std::int64_t from) {
  // Smaller batches at the end of an epoch are not comparable.
  if (report.samples != report.full_batch || report.step <= from_ + kSettling) return {};
  const bool is_other_window = !window_.empty() && window_.front().full_batch != report.full_batch;
  if (is_other_window || (trial_ && trial_->full_batch != report.full_batch)) {
    const auto undone = disturb(report.step, from, "the size of the batch changed");
    return undone ? std::vector<Decision>{*undone} : std::vector<Decision>{};
  }
  window_.push_back(report);
  if (window_.size() < kWindow) return {};
  const Level now = level_of(window_);
  std::vector<Decision> decisions =
      trial_ ? std::vector<Decision>{judge(now, report.step, from)} : try_next(now, report.step, from);
  window_.clear();
  return decisions;
}

Decision AdaptiveController::judge(const Level& after, std::int64_t step, std::int64_t from) {
  const Level before = trial_->before;
  const double needed_s = least_gain_s(before, after);
  trial_->decision.after_s = after.median_s;
  const std::string measured = text("a step took ", in_ms(after.median_s), ", and before ",
                                    in_ms(before.median_s), "; a gain counts from ", in_ms(needed_s), " on");
  if (before.median_s - after.median_s <= needed_s) return take_back(step, from, measured);
  Decision decision = std::move(trial_->decision);
  decision.step = step;
  decision.verdict = Verdict::kKept;
  decision.reason = measured;
  trial_->of->patience = 1;
  trial_.reset();
  return decision;
}

Decision AdaptiveController::take_back(std::int64_t step, std::int64_t from, std::string why) {
  Waiting& of = *trial_->of;
  of.knob->revert(from);
  of.windows = of.patience = std::min(2 * of.patience, kMaxPatience);
  Decision decision = std::move(trial_->decision);
  trial_.reset();
  std::swap(decision.from, decision.to);
  decision.step = step;
  decision.from_step = from + 1;
  decision.verdict = Verdict::kReverted;
  decision.reason = std::move(why);
  look_from(from);
  return decision;
}

/// By falling estimated gain.
std::vector<AdaptiveController::Candidate> AdaptiveController::ask_knobs(const Level& now) {
  std::vector<Candidate> candidates;
  for (Waiting& each : knobs_) {
    if (each.windows > 0 && --each.windows > 0) continue;
    const auto proposal = each.knob->propose(window_, now.median_s);
    if (!proposal) continue;
    Candidate candidate{.of = &each, .proposal = *proposal, .gain_s = {}};
    if (proposal->estimated_s > 0) candidate.gain_s = now.median_s - proposal->estimated_s;
    candidates.push_back(std::move(candidate));
  }
  std::ranges::stable_sort(candidates, std::ranges::greater(), &Candidate::gain_s);
  return candidates;
}

std::vector<Decision> AdaptiveController::try_next(const Level& now, std::int64_t step, std::int64_t from) {
  const double least_s = least_gain_s(now, now);
  std::vector<Decision> decisions;
  const Candidate* first = nullptr;
  const std::vector<Candidate> candidates = ask_knobs(now);
  for (const Candidate& candidate : candidates) {
    if (!candidate.gain_s || *candidate.gain_s >= least_s) {
      if (first == nullptr) first = &candidate;
      continue;
    }
    if (std::exchange(candidate.of->told_skipped, true)) continue;
    decisions.push_back({.step = step,
                         .from_step = from + 1,
                         .knob = candidate.of->knob->name(),
                         .verdict = Verdict::kSkipped,
                         .from = candidate.of->knob->value(),
                         .to = candidate.proposal.to,
                         .reason = text("an estimated gain of ", in_ms(*candidate.gain_s),
                                        " cannot be measured; a gain counts from ", in_ms(least_s),
                                        " on: ", candidate.proposal.reason),
                         .before_s = now.median_s,
                         .estimated_s = candidate.proposal.estimated_s});
  }
  if (first != nullptr) decisions.push_back(try_out(*first, now, step, from));
  return decisions;
}

Decision AdaptiveController::try_out(const Candidate& candidate, const Level& now, std::int64_t step,
                                     std::int64_t from) {
  Waiting& of = *candidate.of;
  const Decision decision{.step = step,
                          .from_step = from + 1,
                          .knob = of.knob->name(),
                          .verdict = Verdict::kTried,
                          .from = of.knob->value(),
                          .to = candidate.proposal.to,
                          .reason = candidate.proposal.reason,
                          .before_s = now.median_s,
                          .estimated_s = candidate.proposal.estimated_s};
  of.knob->apply(from);
  of.told_skipped = false;
  trial_ = Trial{.of = &of, .decision = decision, .before = now, .full_batch = window_.front().full_batch};
  look_from(from);
  return decision;
}

std::optional<Decision> AdaptiveController::disturb(std::int64_t step, std::int64_t from,
                                                    const std::string& why) {
  if (trial_) return take_back(step, from, why + " before the comparison ended");
  look_from(from);
  return std::nullopt;
}

void AdaptiveController::look_from(std::int64_t from) {
  from_ = std::max(from_, from);
  window_.clear();
}

void AdaptiveController::start_over(std::int64_t step) {
  trial_.reset();
  from_ = step;
  window_.clear();
  for (Waiting& each : knobs_) {
    each.patience = 1;
    each.windows = 0;
    each.told_skipped = false;
    each.knob->start_over(step);
  }
}

}  // namespace trireme::train
