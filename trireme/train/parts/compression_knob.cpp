#include "trireme/train/parts/internal/compression_knob.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "trireme/base/text.h"
#include "trireme/train/estimate/internal/codec_costs.h"
#include "trireme/train/estimate/step_trial.h"
#include "trireme/train/parts/internal/compression.h"
#include "trireme/train/parts/internal/milliseconds.h"

namespace trireme::train {
namespace {

constexpr std::int64_t kMeasuredNumel = std::int64_t{2} << 20;
/// Steps that take so many times as long as the shortest ones without compression are a reason to try it.
constexpr double kMuchLonger = 1.5;

/// Parameters of one type in the order of the model, the first of them whatever its size.
optim::NamedTensors sample_of(const optim::NamedTensors& all) {
  optim::NamedTensors sample;
  std::int64_t numel = 0;
  for (const auto& each : all) {
    const at::Tensor& tensor = each.second;
    if (tensor.scalar_type() != all.front().second.scalar_type()) continue;
    if (!sample.empty() && numel + tensor.numel() > kMeasuredNumel) continue;
    numel += tensor.numel();
    sample.push_back(each);
  }
  return sample;
}

std::int64_t numel_of_all(const optim::NamedTensors& tensors) {
  std::int64_t numel = 0;
  for (const auto& each : tensors) numel += each.second.numel();
  return numel;
}

}  // namespace

ExchangeSeconds measure_exchanges(const TrainerObjects& objects, const comm::Group& copies) {
  const at::NoGradGuard no_grad;
  const optim::NamedTensors& all = objects.parameters.all;
  ExchangeSeconds mine;
  if (!all.empty()) {
    const optim::NamedTensors sample = sample_of(all);
    const double times = static_cast<double>(numel_of_all(all)) / static_cast<double>(numel_of_all(sample));
    parallel::CompressionOptions options = compression_options(objects.plan.config());
    mine.compressed_s = times * exchange_s(options, sample, copies);
    options.name = "none";
    mine.plain_s = times * exchange_s(options, sample, copies);
  }
  return {.compressed_s = agreed(objects.context, mine.compressed_s, comm::ReduceOp::kMax),
          .plain_s = agreed(objects.context, mine.plain_s, comm::ReduceOp::kMax)};
}

std::optional<Knob::Proposal> CompressionKnob::propose(std::span<const StepReport> window, double step_s) {
  if (is_on_) {
    const double gain_s = exchange_.compressed_s - exchange_.plain_s;
    if (gain_s <= 0) return std::nullopt;
    return Proposal{.to = "none",
                    .reason = text("an exchange of all gradients took ", in_ms(exchange_.compressed_s),
                                   " with it, and ", in_ms(exchange_.plain_s), " without, before the run"),
                    .estimated_s = std::max(step_s - gain_s, exchange_.plain_s)};
  }
  const std::int64_t full_batch = window.front().full_batch;
  if (!shortest_off_ || shortest_off_->full_batch != full_batch || step_s < shortest_off_->step_s)
    shortest_off_ = {.step_s = step_s, .full_batch = full_batch};
  if (step_s <= kMuchLonger * shortest_off_->step_s) return std::nullopt;
  longest_off_ = {.step_s = step_s, .full_batch = full_batch};
  return Proposal{.to = codec_,
                  .reason = text("a step takes ", in_ms(step_s), " without it, and took ",
                                 in_ms(shortest_off_->step_s), " before: links may have become slower")};
}

/// A trial of the codec has used its reason up: only steps that are much longer again are another one.
void CompressionKnob::apply(std::int64_t from) {
  if (!is_on_) shortest_off_ = longest_off_;
  change(!is_on_, from);
}

void CompressionKnob::change(bool is_on, std::int64_t from) {
  is_on_ = is_on;
  from_ = from;
}

void CompressionKnob::begin_step(std::int64_t steps_done) {
  if (!from_ || steps_done < *from_) return;
  from_.reset();
  if (hook_->is_compressing() != is_on_) hook_->set_compressing(is_on_);
}

void CompressionKnob::start_over(std::int64_t /*step*/) {
  is_on_ = true;
  from_.reset();
  shortest_off_.reset();
  longest_off_.reset();
  hook_->set_compressing(true);
}

}  // namespace trireme::train
