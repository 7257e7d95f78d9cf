// A batch norm over one value per channel has no variance, and libtorch throws. If only the last batch of an
// epoch is so small, that happens late.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <optional>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/out_of_memory.h"
#include "trireme/base/run_main.h"
#include "trireme/model/deferred.h"
#include "trireme/model/untouched.h"
#include "trireme/train/config/batch_ramp.h"
#include "trireme/train/step/internal/check.h"
#include "trireme/train/step/step_schedule.h"

namespace trireme::train {
namespace {

/// For libtorch's types, and for modules with the same buffers.
bool has_batch_norm(const torch::nn::Module& module) {
  const auto is_one = [](const std::shared_ptr<torch::nn::Module>& each) {
    return each->as<torch::nn::BatchNorm1dImpl>() != nullptr ||
           each->as<torch::nn::BatchNorm2dImpl>() != nullptr ||
           each->as<torch::nn::BatchNorm3dImpl>() != nullptr;
  };
  const auto is_running_mean = [](const auto& buffer) { return buffer.key().ends_with("running_mean"); };
  const auto buffers = module.named_buffers();
  return std::ranges::any_of(module.modules(), is_one) || std::ranges::any_of(buffers, is_running_mean);
}

/// The first step of the run in which a micro-batch has one sample. Steps of a phase are equal, except for
/// the last one of an epoch.
std::optional<std::int64_t> first_single_sample(const ParallelPlan& plan, const data::BatchLayout& batches) {
  const std::int64_t end = StepSchedule(plan.config(), batches).total_steps();
  std::set<std::int64_t> steps;
  for (const std::int64_t first : batches.phases_in(0, end)) {
    const std::uint64_t epoch = batches.at(static_cast<std::uint64_t>(first)).epoch;
    steps.insert({first, batches.first_step_of(epoch + 1) - 1, batches.first_step_of(epoch + 2) - 1});
  }
  const auto has_single_sample = [&](std::int64_t step) {
    return step < end && batches.at(static_cast<std::uint64_t>(step)).size < 2 * plan.num_parts();
  };
  const auto found = std::ranges::find_if(steps, has_single_sample);
  return found == steps.end() ? std::nullopt : std::optional(*found);
}

/// The error of a forward in the current modes of the modules; empty: none.
std::string error_of_forward(model::Model& model, const Fields& inputs) {
  const at::NoGradGuard no_grad;
  const model::Untouched untouched(model);
  try {
    model::is_deferred(model) ? model::outputs_on_shapes(model::layers_or_whole(model), inputs)
                              : model.forward_all(inputs);
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    if (failure.message == "out of memory" || !out_of_memory_in(failure.message).empty()) throw;
    return failure.message;
  }
  return "";
}

Fields twice(const Fields& inputs) {
  return inputs.map([](const at::Tensor& one) { return at::cat({one, one}); });
}

}  // namespace

void check_single_samples(model::Model& model, const std::string& what, const ParallelPlan& plan,
                          const data::DataSource& data) {
  const std::int64_t samples = data.train->size(), parts = plan.num_parts();
  // A batch that grows with noise may reach its second size early, and keep each size to the end of an epoch.
  RunConfig config = plan.config();
  if (grows_with_noise(config.train)) config.train = without_ramp(config.train);
  const data::BatchLayout first = batch_layout(plan.config(), samples), last = batch_layout(config, samples);
  const bool of_first = first_single_sample(plan, first).has_value();
  const data::BatchLayout& batches = of_first ? first : last;
  const std::optional<std::int64_t> step = first_single_sample(plan, batches);
  if (!step || !has_batch_norm(model)) return;
  const Fields sample = data.train->trial_batch(1).input;
  const std::string error = error_of_forward(model, sample);
  if (error.empty() || !error_of_forward(model, twice(sample)).empty()) return;
  const data::BatchPlace batch = batches.at(static_cast<std::uint64_t>(*step));
  const bool is_rest = batch.size < batch.full && batch.full <= samples;
  throw InvalidArgument(text(
      what, " has a batch norm, which cannot learn from a micro-batch of 1 sample: ", error,
      ". The batch of step ", *step + 1, ", number ", batch.number + 1, " of epoch ", batch.epoch + 1,
      ", has ", batch.size, " of ", samples,
      " training samples (train.global_batch = ", plan.config().train.global_batch, ") for ", parts,
      " micro-batches (replicas: ", plan.num_replicas(), ", micro-batches of each: ", plan.num_microbatches(),
      "); expected ", 2 * parts, " samples or more in each batch. ",
      is_rest ? "Set data.drop_last = true, which leaves that batch out, or choose" : "Choose",
      " another train.global_batch, fewer micro-batches (train.accumulation, parallel.microbatches), or "
      "fewer ranks"));
}

}  // namespace trireme::train
