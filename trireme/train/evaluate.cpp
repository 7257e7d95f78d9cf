#include "trireme/train/evaluate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <numeric>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::train {
namespace {

constexpr std::int64_t kEvaluationBatch = 256;

data::Example batch_of(const data::Dataset& dataset, const std::vector<std::int64_t>& indices,
                       comm::Context& context) {
  const telemetry::OwnWork work(context.status(), "reading samples to evaluate");
  return dataset.get_batch(indices);
}

}  // namespace

Evaluation evaluate(const Predict& predict, const data::Dataset& dataset, data::Slice part,
                    comm::Context& context) {
  const at::NoGradGuard no_grad;
  at::Tensor sums = at::zeros({4}, at::kDouble);  // samples, targets, correct, loss: exact up to 2^53
  auto* sum = sums.data_ptr<double>();
  for (std::int64_t begin = part.begin; begin < part.end; begin += kEvaluationBatch) {
    std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(kEvaluationBatch, part.end - begin)));
    std::iota(indices.begin(), indices.end(), begin);
    const data::Example batch = batch_of(dataset, indices, context);
    const at::Tensor output = predict(batch.input);
    if (!output.defined()) continue;
    const at::Tensor logits = output.to(at::kFloat).flatten(0, -2);
    data::check_targets(batch, indices, logits.size(1));
    const at::Tensor targets = batch.target.flatten();
    sum[0] += static_cast<double>(indices.size());
    sum[1] += static_cast<double>(targets.numel());
    sum[2] += static_cast<double>(logits.argmax(1).eq(targets).sum().item<std::int64_t>());
    sum[3] += at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum).item<double>();
  }
  context.world().all_reduce(sums);
  const Evaluation result{.samples = static_cast<std::int64_t>(sum[0]),
                          .targets = static_cast<std::int64_t>(sum[1]),
                          .correct = static_cast<std::int64_t>(sum[2]),
                          .loss = sum[3] / sum[1]};
  if (result.samples != dataset.size()) {
    throw InternalError(text("evaluation counted ", result.samples, " of ", dataset.size(), " samples"));
  }
  return result;
}

}  // namespace trireme::train
