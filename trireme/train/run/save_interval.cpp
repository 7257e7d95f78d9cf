#include "trireme/train/run/save_interval.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "trireme/base/text.h"
#include "trireme/plan/goodput.h"

namespace trireme::train {
namespace {

constexpr double kAssumed_s = 86400;  // between failures
constexpr double kMinSave_s = 1e-4;
constexpr double kMinStep_s = 1e-9;
constexpr double kMaxSteps = 1e15;
constexpr std::int64_t kFirstSave = 10, kSettles = 2;

}  // namespace

FailureRate failure_rate_of(const CheckpointOptions& options, const telemetry::GoodputRecord& goodput) {
  if (options.mean_time_between_failures_s > 0)
    return {options.mean_time_between_failures_s, "checkpoint.mean_time_between_failures_s"};
  const std::int64_t failures = goodput.interruptions;
  const double wall_s = goodput.wall_s();
  return {(kAssumed_s + wall_s) / static_cast<double>(failures + 1),
          text(failures == 0 ? std::string("no failure")
                             : text(failures, failures == 1 ? " failure" : " failures"),
               " in ", human_duration(wall_s), " of this run, and one in ", human_duration(kAssumed_s),
               " was assumed")};
}

std::int64_t steps_between_saves(const SaveCosts& costs) {
  const double interval_s =
      plan::daly_interval_s(std::max(costs.save_s, kMinSave_s), costs.between_failures_s);
  const double steps = interval_s / std::max(costs.step_s, kMinStep_s);
  return std::llround(std::clamp(steps, 1.0, kMaxSteps));
}

std::string describe(std::int64_t steps, const SaveCosts& costs, const FailureRate& rate) {
  return text("checkpoints every ", steps, steps == 1 ? " step (" : " steps (",
              human_duration(static_cast<double>(steps) * costs.step_s),
              "): Daly's interval for saves that block ", human_duration(costs.save_s), ", steps of ",
              human_duration(costs.step_s), " and a failure every ", human_duration(rate.between_s), " (",
              rate.reason, ")");
}

SaveInterval::SaveInterval(const CheckpointOptions& options, std::int64_t steps)
    : automatic_(options.interval == "auto"), last_save_(steps) {
  if (automatic_) next_save_ = steps + (options.every_steps > 0 ? options.every_steps : kFirstSave);
}

void SaveInterval::saved(std::int64_t step) {
  if (!automatic_) return;
  last_save_ = step;
  ++num_saves_;
  next_save_ = kNever;
  next_choice_ = step + kSettles;
}

bool SaveInterval::choose(std::int64_t step, std::int64_t apart) {
  const bool is_news = std::abs(apart - apart_) > apart_ / 4;
  apart_ = apart;
  next_choice_ = kNever;
  next_save_ = std::max(last_save_ + apart, step + 1);
  return is_news;
}

}  // namespace trireme::train
