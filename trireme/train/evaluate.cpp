#include "trireme/train/evaluate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/train/internal/check.h"

namespace trireme::train {
namespace {

data::Example batch_of(const data::Dataset& dataset, const std::vector<std::int64_t>& indices,
                       comm::Context& context) {
  const telemetry::OwnWork work(context.status(), "reading samples to evaluate");
  return dataset.get_batch(indices);
}

/// Samples, loss and its count, then of each metric its sum and count: whole numbers are exact up to 2^53.
at::Tensor sums_of(const Predict& predict, const EvaluatedPart& samples,
                   const objective::Objective& objective, comm::Context& context) {
  at::Tensor sums = at::zeros({3 + 2 * static_cast<std::int64_t>(objective.metrics().size())}, at::kDouble);
  const bool vary = samples.dataset.sizes_vary();
  const double count_of_sample = vary ? objective.count_all(batch_of(samples.dataset, {0}, context)) : 0;
  const std::int64_t end = samples.part.begin + std::max(samples.longest_part, samples.part.size());
  for (std::int64_t begin = samples.part.begin; begin < end; begin += samples.batch) {
    if (begin >= samples.part.end) {
      samples.sit_out();
      continue;
    }
    std::vector<std::int64_t> indices(
        static_cast<std::size_t>(std::min(samples.batch, samples.part.end - begin)));
    std::iota(indices.begin(), indices.end(), begin);
    const data::Example batch = batch_of(samples.dataset, indices, context);
    objective.check_batch(batch, indices);
    if (vary) check_count(objective, batch, count_of_sample);
    const Fields outputs = predict(batch.input);
    if (!outputs.at(0).defined()) continue;
    const Fields targets = batch.target.on(outputs.at(0).device());
    auto* sum = sums.data_ptr<double>();
    *sum++ += static_cast<double>(indices.size());
    *sum++ += objective.loss_all(outputs, targets).item<double>();
    *sum++ += objective.count_all(batch);
    for (const objective::Metric& metric : objective.metrics()) {
      const objective::Sum measured = metric.measure(outputs, targets);
      *sum++ += measured.value;
      *sum++ += measured.count;
    }
  }
  return sums;
}

}  // namespace

MetricValue Evaluation::metric(const std::string& name) const {
  if (name == "loss") return {.name = name, .value = loss, .better = objective::Better::kLower};
  std::vector<std::string> known = {"loss"};
  for (const MetricValue& each : metrics) {
    if (each.name == name) return each;
    known.push_back(each.name);
  }
  throw InvalidArgument(text("an evaluation has no metric '", name, "'", suggest(name, known)));
}

Evaluation evaluate(const Predict& predict, const EvaluatedPart& samples,
                    const objective::Objective& objective, comm::Context& context) {
  const at::NoGradGuard no_grad;
  at::Tensor sums = sums_of(predict, samples, objective, context);
  context.world().all_reduce(sums);
  const auto* sum = sums.const_data_ptr<double>();
  const auto counted = static_cast<std::int64_t>(sum[0]);
  if (counted != samples.dataset.size())
    throw InternalError(text("evaluation counted ", counted, " of ", samples.dataset.size(), " samples"));
  if (!(sum[2] > 0))
    throw DataError(
        "none of the targets that are evaluated on counts; see objective.ignored_classes and "
        "objective.class_weights");
  Evaluation result{.samples = counted, .loss = sum[1] / sum[2], .metrics = {}};
  const auto* next = sum + 3;
  for (const objective::Metric& metric : objective.metrics()) {
    const double mean = next[0] / next[1];
    result.metrics.push_back({.name = metric.name,
                              .value = metric.finish ? metric.finish(mean) : mean,
                              .count = next[1],
                              .better = metric.better});
    next += 2;
  }
  return result;
}

}  // namespace trireme::train
