#include "trireme/train/step/batch_feed.h"

#include <ATen/ops/full.h>

#include <algorithm>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/telemetry/rank_usage.h"
#include "trireme/train/config/batch_ramp.h"
#include "trireme/train/step/internal/check.h"

namespace trireme::train {
namespace {

/// Default limit of reader threads: a rank's share of the host's cores, but at least a few, for slow disks.
int max_readers(const comm::Context& context) {
  constexpr int kFew = 4;
  return std::max(kFew, available_cores() / context.local_world_size());
}

data::StreamOptions stream_options(const ParallelPlan& plan, const comm::Context& context,
                                   const PlanGroups& groups, const TrainedModel& model,
                                   const data::Needed& needed) {
  const auto check_targets = [objective = model.objective, count_of_sample = model.count_of_sample](
                                 const data::Example& batch, std::span<const std::int64_t> indices) {
    objective->check_batch(batch, indices);
    check_count(*objective, batch, count_of_sample);
  };
  const RunConfig& config = plan.config();
  return {.global_batch = config.train.global_batch,
          .ramp = batch_ramp(config.train),
          .last_batch = last_batch(config),
          .num_microbatches = plan.num_microbatches(),
          .rank = groups.replicas ? groups.replicas->rank() : 0,
          .world_size = groups.replicas ? groups.replicas->size() : 1,
          .workers = config.data.workers,
          .max_workers = max_readers(context),
          .prefetch = static_cast<int>(config.data.prefetch),
          .memory_bytes = config.data.read_ahead_mib << 20,
          .seed = static_cast<std::uint64_t>(config.run.seed),
          .open_shards = config.data.open_shards,
          .balance = plan.balance(),
          .needed = needed,
          .pinned = plan.device() != c10::kCPU,
          .check_targets = check_targets,
          .trace = context.trace(),
          .log = context.log()};
}

}  // namespace

BatchFeed::BatchFeed(const ParallelPlan& plan, comm::Context& context, const PlanGroups& groups,
                     const data::DataSource& data, const TrainedModel& model, const data::Needed& computed)
    : context_(context),
      replicas_(groups.replicas),
      objective_(model.objective),
      count_of_sample_(model.count_of_sample),
      num_microbatches_(plan.num_microbatches()),
      needed_(objective_->counts_by_value() ? data::Needed() : computed),
      batches_{.global_batch = plan.config().train.global_batch, .last_batch = last_batch(plan.config())},
      num_samples_(data.train->size()),
      step_schedule_(plan.config(), batch_layout(plan.config(), data.train->size())),
      feed_(data.train->open(stream_options(plan, context, groups, model, needed_)), model.device, computed) {
}

void BatchFeed::change_ramp(std::int64_t from, const data::BatchRamp& ramp) {
  feed_.change_ramp(static_cast<std::uint64_t>(from), ramp);
  data::StreamOptions changed = batches_;
  changed.ramp = ramp;
  step_schedule_.set_batches(data::layout_of(changed, num_samples_));
}

const data::StepBatch& BatchFeed::next(std::int64_t steps) {
  {
    const telemetry::TraceScope waiting(telemetry::main_of(context_.trace()), "data", "waiting for data");
    context_.status().set_action(text("step ", steps + 1, ": waiting for data"));
    context_.status().usage().enter(telemetry::Activity::kData);
    const telemetry::OwnWork work(context_.status(), "waiting for data");
    try {
      feed_.next();
    } catch (const DataError& error) {
      throw DataError(text("step ", steps + 1, ": ", error.what()));
    }
  }
  const data::LoadingReport loading = feed_.report();
  const std::int64_t looked = std::max<std::int64_t>(loading.batches - 1, 0);  // without the first
  context_.status().usage().set_loader(loading.fill * static_cast<double>(looked), looked, loading.prefetch);
  const data::StepBatch& batch = feed_.batch();
  const std::int64_t samples = step_schedule_.batch(steps).size;
  require(batch.global_size == samples, "the data have handed over ", batch.global_size,
          " samples as the batch of step ", steps + 1, ", which has ", samples,
          "; a custom stream follows StreamOptions::global_batch and ramp, see data::layout_of");
  return batch;
}

/// Targets are on the host, so no device has to be waited for.
double BatchFeed::global_count() {
  const data::StepBatch& batch = feed_.batch();
  if (!objective_->counts_by_value()) return count_of_sample_ * static_cast<double>(batch.global_size);
  double own = 0;
  for (const data::Example& samples : batch.microbatches) own += objective_->count_all(samples);
  at::Tensor sum = at::full({1}, own, at::kDouble);
  const double began_s = now_s();
  if (replicas_) comm::Group(*replicas_).all_reduce(sum);
  waited_s_ += now_s() - began_s;
  return sum.item<double>();
}

double BatchFeed::count_of(const data::Example& samples) const {
  return objective_->counts_by_value() ? objective_->count_all(samples)
                                       : count_of_sample_ * static_cast<double>(samples.rows());
}

}  // namespace trireme::train
