#include "trireme/train/step/step_schedule.h"

#include <algorithm>

namespace trireme::train {
namespace {

std::int64_t total_of(std::int64_t epochs, std::int64_t max_steps, const data::BatchLayout& batches) {
  const std::int64_t steps = batches.first_step_of(static_cast<std::uint64_t>(epochs));
  return max_steps > 0 ? std::min(steps, max_steps) : steps;
}

}  // namespace

std::vector<std::string> checkpoint_interval_names() { return {"steps", "auto"}; }

StepSchedule::StepSchedule(const RunConfig& config, const data::BatchLayout& batches)
    : batches_(batches),
      epochs_(config.train.epochs),
      max_steps_(config.train.max_steps),
      total_steps_(total_of(epochs_, max_steps_, batches)),
      evaluates_every_(config.eval.every_steps),
      saves_every_(config.checkpoint.interval == "steps" ? config.checkpoint.every_steps : 0),
      logs_every_(config.run.log_every_steps),
      checks_replicas_every_(config.parallel.check_replicas_every) {}

void StepSchedule::set_batches(const data::BatchLayout& batches) {
  batches_ = batches;
  total_steps_ = total_of(epochs_, max_steps_, batches);
}

std::int64_t StepSchedule::next_meeting(std::int64_t step) const {
  std::int64_t next = std::min(total_steps_, batches_.first_step_of(batch(step).epoch + 1));
  for (const std::int64_t every : {evaluates_every_, saves_every_}) {
    if (every > 0) next = std::min(next, (step / every + 1) * every);
  }
  return next;
}

}  // namespace trireme::train
