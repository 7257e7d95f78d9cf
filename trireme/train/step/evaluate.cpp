#include "trireme/train/step/evaluate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/data/batch_reader.h"
#include "trireme/train/step/internal/check.h"

namespace trireme::train {
namespace {

/// The samples of an evaluation.
class Samples {
 public:
  Samples(const EvaluatedPart& part, comm::Context& context)
      : dataset_(part.dataset), reader_(part.needed), context_(context) {}

  data::Example batch_of(const std::vector<std::int64_t>& indices) const {
    const telemetry::OwnWork work(context_.status(), "reading samples to evaluate");
    return reader_.read(dataset_, indices);
  }

 private:
  const data::Dataset& dataset_;
  const data::BatchReader reader_;
  comm::Context& context_;
};

/// Sums that stay on their device. It is read once, after the last batch.
class Sums {
 public:
  explicit Sums(std::size_t count) : known_(count, 0), computed_(count) {}

  void add(std::size_t place, const objective::Value& value) {
    if (!value.tensor.defined()) {
      known_[place] += value.number;
      return;
    }
    const at::Tensor more = value.tensor.to(at::kDouble);
    computed_[place] = computed_[place].defined() ? computed_[place] + more : more;
  }

  at::Tensor read() const {
    at::Tensor sums = at::empty({static_cast<std::int64_t>(known_.size())}, at::kDouble);
    std::ranges::copy(known_, sums.data_ptr<double>());
    std::vector<std::int64_t> places;
    std::vector<at::Tensor> there;
    for (std::size_t i = 0; i < computed_.size(); ++i) {
      if (!computed_[i].defined()) continue;
      places.push_back(static_cast<std::int64_t>(i));
      there.push_back(computed_[i].reshape({}));
    }
    if (there.empty()) return sums;
    const at::Tensor here = at::stack(there).cpu();
    for (std::size_t i = 0; i < places.size(); ++i)
      sums.data_ptr<double>()[places[i]] += here.const_data_ptr<double>()[i];
    return sums;
  }

 private:
  std::vector<double> known_;
  std::vector<at::Tensor> computed_;
};

/// Samples, loss and its count, then sum and count of each metric. Integers are exact up to 2^53.
at::Tensor sums_of(const Predict& predict, const EvaluatedPart& samples,
                   const objective::Objective& objective, comm::Context& context) {
  Sums sums(3 + 2 * objective.metrics().size());
  const Samples read(samples, context);
  const bool vary = samples.dataset.sizes_vary();
  const double count_of_sample = vary ? objective.count_all(read.batch_of({0})) : 0;
  const std::int64_t end = samples.part.begin + std::max(samples.longest_part, samples.part.size());
  for (std::int64_t begin = samples.part.begin; begin < end; begin += samples.batch) {
    if (begin >= samples.part.end) {
      samples.sit_out();
      continue;
    }
    std::vector<std::int64_t> indices(
        static_cast<std::size_t>(std::min(samples.batch, samples.part.end - begin)));
    std::iota(indices.begin(), indices.end(), begin);
    const data::Example batch = read.batch_of(indices);
    if (samples.needed.targets) objective.check_batch(batch, indices);
    if (vary) check_count(objective, batch, count_of_sample);
    const Fields outputs = predict(batch.input);
    if (!outputs.at(0).defined()) continue;
    const Fields targets = batch.target.on(outputs.at(0).device());
    std::size_t place = 0;
    sums.add(place++, static_cast<double>(indices.size()));
    sums.add(place++, objective.loss_all(outputs, targets));
    sums.add(place++, objective.count_all(batch));
    for (const objective::Metric& metric : objective.metrics()) {
      const auto [value, count] = metric.measure(outputs, targets);
      sums.add(place++, value);
      sums.add(place++, count);
    }
  }
  return sums.read();
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
