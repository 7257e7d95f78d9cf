#include "trireme/train/calendar.h"

#include <algorithm>

namespace trireme::train {
namespace {

std::int64_t total_of(const TrainOptions& options, std::int64_t steps_per_epoch) {
  // As many as a double counts: nobody waits for the end of them.
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  const bool is_beyond = steps_per_epoch > 0 && options.epochs > kMost / steps_per_epoch;
  const std::int64_t steps = is_beyond ? kMost : options.epochs * steps_per_epoch;
  return options.max_steps > 0 ? std::min(steps, options.max_steps) : steps;
}

}  // namespace

Calendar::Calendar(const RunConfig& config, std::int64_t steps_per_epoch)
    : steps_per_epoch_(steps_per_epoch),
      total_steps_(total_of(config.train, steps_per_epoch)),
      evaluates_every_(config.eval.every_steps > 0 ? config.eval.every_steps : steps_per_epoch),
      saves_every_(config.checkpoint.every_steps),
      logs_every_(config.run.log_every_steps) {}

std::int64_t Calendar::next_meeting(std::int64_t step) const {
  std::int64_t next = total_steps_;
  for (const std::int64_t every : {steps_per_epoch_, evaluates_every_, saves_every_}) {
    if (every > 0) next = std::min(next, (step / every + 1) * every);
  }
  return next;
}

}  // namespace trireme::train
