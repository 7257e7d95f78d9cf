#include "trireme/train/estimate/step_trial.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/median.h"
#include "trireme/train/config/batch_ramp.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

constexpr int kWarmUpSteps = 2;
constexpr std::int64_t kMinSteps = 3, kMaxSteps = 100;

/// Allows practically endless steps, which hardly change the weights.
RunConfig endless(RunConfig config) {
  config.train = without_ramp(config.train);
  config.learning_rate = {};
  config.optimizer.lr = 1e-12;
  config.train.noise_scale_every_steps = 0;
  config.train.adapt = false;
  config.train.epochs = 1'000'000;
  config.train.max_steps = 0;
  return config;
}

double seconds_of_step(Trainer& trainer) {
  const double begin_s = now_s();
  trainer.step();
  return now_s() - begin_s;
}

std::int64_t steps_in(double trial_s, double step_s) {
  return std::clamp(static_cast<std::int64_t>(trial_s / std::max(step_s, 1e-9)), kMinSteps, kMaxSteps);
}

StepTrial result_of(comm::Context& context, Trainer& trainer, const std::vector<double>& seconds) {
  while (trainer.last_report()) {
  }
  return {.step_s = agreed(context, median(seconds), comm::ReduceOp::kMax),
          .memory_bytes = largest(context, trainer.memory()).at_peak.total()};
}

/// Runs a fixed number of steps: asynchronous ranks cannot agree on a number between steps.
StepTrial trial_without_pause(RunConfig config, comm::Context& context, const data::DataSource& data,
                              std::int64_t steps) {
  config.train.max_steps = kWarmUpSteps + steps;
  Trainer trainer(config, context, data);
  std::vector<double> seconds;
  while (!trainer.finished()) seconds.push_back(seconds_of_step(trainer));
  return result_of(context, trainer, {seconds.begin() + kWarmUpSteps, seconds.end()});
}

}  // namespace

double agreed(comm::Context& context, double mine, comm::ReduceOp op) {
  at::Tensor number = at::scalar_tensor(mine, at::kDouble);
  context.world().all_reduce(number, op);
  return number.item<double>();
}

StepTrial time_steps(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
                     double trial_s) {
  const RunConfig config = endless(plan.config());
  if (plan.asynchronous()) {
    const StepTrial first = trial_without_pause(config, context, data, kMinSteps);
    return trial_without_pause(config, context, data, steps_in(trial_s, first.step_s));
  }
  Trainer trainer(config, context, data);
  for (int step = 0; step < kWarmUpSteps; ++step) trainer.step();
  const double first_s = agreed(context, seconds_of_step(trainer), comm::ReduceOp::kMax);
  std::vector<double> seconds;
  for (std::int64_t steps = steps_in(trial_s, first_s); steps > 0; --steps)
    seconds.push_back(seconds_of_step(trainer));
  return result_of(context, trainer, seconds);
}

}  // namespace trireme::train
