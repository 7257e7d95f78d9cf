// What a trainer computes on: batches, and what their losses are divided by.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/train/internal/check.h"
#include "trireme/train/trainer.h"

namespace trireme::train {

/// A batch may grow, and the last one of an epoch may be a smaller one: no epoch ends before `end`.
std::vector<Fields> Trainer::shapes_before(std::int64_t end) const {
  const Fields sample = data_.train->trial_batch(1).input;
  std::set<std::int64_t> sizes;
  std::vector<std::int64_t> steps = calendar_.batches().phases_in(step_, end);
  steps.push_back(end - 1);
  for (const std::int64_t step : steps) {
    for (int m = 0; m < plan_.num_microbatches(); ++m)
      sizes.insert(data::slice_of(calendar_.batch(step).size, m, plan_.num_microbatches()).size());
  }
  sizes.erase(0);
  std::vector<Fields> shapes;
  for (const std::int64_t size : sizes) {
    shapes.push_back(sample.map([&](const at::Tensor& one) {
      std::vector<std::int64_t> shape = one.sizes().vec();
      shape[0] = size;
      return at::zeros(shape, one.options().device(device_));
    }));
  }
  return shapes;
}

void Trainer::take_batch(std::int64_t steps) {
  {
    const telemetry::TraceScope waiting(telemetry::main_of(context_.trace()), "data", "waiting for data");
    context_.status().set_action(text("step ", step_ + 1, ": waiting for data"));
    const telemetry::OwnWork work(context_.status(), "waiting for data");
    try {
      feed_.next();
    } catch (const DataError& error) {
      throw DataError(text("step ", steps + 1, ": ", error.what()));
    }
  }
  const data::StepBatch& batch = feed_.batch();
  const std::int64_t samples = calendar_.batch(steps).size;
  require(batch.global_size == samples, "the data have handed over ", batch.global_size,
          " samples as the batch of step ", steps + 1, ", which has ", samples,
          "; a stream of one's own goes by StreamOptions::global_batch and ramp, see data::layout_of");
  // No layer will ask.
  if (plan_.by_need() &&
      std::ranges::all_of(batch.microbatches, [](const auto& each) { return each.rows() == 0; }))
    optimizer_->arrive();
  if (outer_steps_ && pipeline_.has_last_stage()) report_.own_count = own_count();
  if (!steps_together()) {
    count_of_batch_ = sum_of_counts(groups_.sites->site);
    return;
  }
  count_of_batch_ = objective_->counts_by_value() ? sum_of_counts(groups_.replicas)
                                                  : count_of_sample_ * static_cast<double>(batch.global_size);
  if (objective_->counts_by_value()) report_.count = count_of_batch_;
}

double Trainer::own_count() const {
  double count = 0;
  for (const data::Example& samples : feed_.batch().microbatches) count += objective_->count_all(samples);
  return count;
}

/// Targets are on the host: nothing waits for a device.
double Trainer::sum_of_counts(std::optional<comm::Group> group) {
  at::Tensor sum = at::full({1}, own_count(), at::kDouble);
  const double began_s = now_s();
  if (group) group->all_reduce(sum);
  counts_waited_s_ += now_s() - began_s;
  return sum.item<double>();
}

data::Needed Trainer::computed_with() const {
  return {.inputs = pipeline_.has_first_stage(), .targets = pipeline_.has_last_stage()};
}

data::Needed Trainer::needed() const {
  return objective_->counts_by_value() ? data::Needed() : computed_with();
}

double Trainer::count_of(const data::Example& samples) const {
  return objective_->counts_by_value() ? objective_->count_all(samples)
                                       : count_of_sample_ * static_cast<double>(samples.rows());
}

parallel::MicroBatch Trainer::microbatch(int m) {
  const auto of_step = static_cast<std::size_t>(m % plan_.num_microbatches());
  if (of_step == 0) take_batch(stream_begin_ + m / plan_.num_microbatches());
  // The mean over the global batch: its division is the first gradient, which costs no operation of its own.
  const double weight = count_of_batch_ > 0 ? 1 / count_of_batch_ : 0;
  if (noise_) noise_->add_part(count_of(feed_.batch().microbatches[of_step]) * weight);
  data::Example samples = feed_.microbatch(of_step);
  return {.input = std::move(samples.input), .target = std::move(samples.target), .weight = weight};
}

}  // namespace trireme::train
