#include "trireme/train/noise_scale.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <type_traits>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/train/batch_ramp.h"
#include "trireme/train/internal/cures.h"

namespace trireme::train {
namespace {

/// States are structs of doubles: a tensor of as many.
template <class State>
at::Tensor room_for(const State& state) {
  at::Tensor room = at::zeros({static_cast<std::int64_t>(sizeof(State) / sizeof(double))}, at::kDouble);
  std::memcpy(room.data_ptr<double>(), &state, sizeof(State));
  return room;
}

template <class State>
void read(const at::Tensor& tensor, State& state) {
  static_assert(std::is_trivially_copyable_v<State>);
  std::memcpy(static_cast<void*>(&state), tensor.const_data_ptr<double>(), sizeof(State));
}

template <class State>
void write(const State& state, const at::Tensor& tensor) {
  std::memcpy(tensor.data_ptr<double>(), &state, sizeof(State));
}

/// The gradient of one would come in pieces, one per stage.
void refuse_shared(const std::vector<model::Layer>& layers) {
  std::set<std::string> seen;
  for (const model::Layer& layer : layers) {
    for (const auto& [name, parameter] : layer.parameters) {
      require(
          seen.insert(name).second, "the noise of gradients cannot be measured: the parameter '", name,
          "' belongs to several layers, which are stages of their own, and a micro-batch's gradient of it "
          "is whole on none of them; leave train.noise_scale_every_steps at 0 and lr.scale_with_batch at "
          "another value, or take one stage (parallel.pipeline = 1, parallel.zero below 3)");
    }
  }
}

}  // namespace

bool uses_ada_scale(const RunConfig& config) { return config.learning_rate.scale_with_batch == "adascale"; }

std::int64_t schedule_steps(const RunConfig& config, std::int64_t total_steps) {
  if (!uses_ada_scale(config)) return total_steps;
  const optim::LearningRateOptions& options = config.learning_rate;
  if (options.progress_steps > 0) return options.progress_steps;
  // How many samples an epoch has does not matter.
  const double samples = batch_layout(config, data::BatchLayout::kMostSteps).samples_before(total_steps);
  return static_cast<std::int64_t>(std::ceil(samples / static_cast<double>(options.reference_batch)));
}

std::unique_ptr<NoiseScale> NoiseScale::make(const ParallelPlan& plan, const parallel::Pipeline& pipeline,
                                             const std::vector<model::Layer>& layers, bool speaks_of_shares) {
  if (plan.config().train.noise_scale_every_steps == 0 && !uses_ada_scale(plan.config())) return nullptr;
  if (plan.is_cut()) refuse_shared(layers);
  return std::unique_ptr<NoiseScale>(new NoiseScale(plan, pipeline.weights(), speaks_of_shares));
}

NoiseScale::NoiseScale(const ParallelPlan& plan, const optim::NamedTensors& weights, bool speaks_of_shares)
    : every_steps_(plan.config().train.noise_scale_every_steps),
      speaks_of_shares_(speaks_of_shares),
      squares_(weights),
      average_state_(room_for(average_.state())) {
  const RunConfig& config = plan.config();
  if (!uses_ada_scale(config)) return;
  ada_.emplace(config.learning_rate.reference_batch);
  ada_state_ = room_for(ada_->state());
  // As long as the samples of the run allow, it cannot end before them.
  const std::int64_t asked = config.learning_rate.progress_steps;
  schedule_steps_ = asked > 0 ? static_cast<double>(asked) : std::numeric_limits<double>::infinity();
  exponent_ = optim::gain_exponent(config.optimizer.name).value_or(1);
}

void NoiseScale::begin_step(StepReport& report, const optim::LearningRate& rate) {
  load();
  measures_ = ada_ || report.step % every_steps_ == 0;
  shares_ = 0;
  if (measures_) squares_.begin();
  if (!ada_) return;
  report.progress = ada_->progress();
  report.gain = ada_->gain(report.step, report.samples);
  report.lr =
      rate.at(static_cast<std::int64_t>(std::floor(ada_->progress()))) * std::pow(*report.gain, exponent_);
}

void NoiseScale::add_part(double share) { shares_ += share * share; }

void NoiseScale::end_step(StepReport& report) {
  if (ada_ && !report.skipped) ada_->advance(*report.gain);
  if (measures_) {
    const double scale = report.loss_scale.value_or(1), norm = report.grad_norm.value_or(0);
    report.squares = {.of_parts = squares_.take() / (scale * scale),
                      .of_mean = norm * norm,
                      .shares = speaks_of_shares_ ? shares_ : 0,
                      .samples = static_cast<double>(report.samples)};
  }
  store();
}

void NoiseScale::observe(StepReport& report) {
  const auto found =
      report.squares && !report.skipped ? optim::estimate_noise(*report.squares) : std::nullopt;
  if (found) {
    average_.add(*found);
    if (ada_) ada_->observe(report.step, *found, static_cast<double>(report.samples));
    store();
  }
  if (const auto mean = noise()) report.noise_scale = mean->scale();
}

std::optional<optim::GradientNoise> NoiseScale::noise() const {
  if (average_.count() == 0) return std::nullopt;
  return average_.mean();
}

std::map<std::string, at::Tensor> NoiseScale::state() const {
  std::map<std::string, at::Tensor> state = {{"average", average_state_}};
  if (ada_) state.emplace("ada_scale", ada_state_);
  return state;
}

void NoiseScale::load() {
  optim::NoiseAverage::State average;
  read(average_state_, average);
  average_.restore(average);
  if (!ada_) return;
  optim::AdaScale::State state;
  read(ada_state_, state);
  ada_->restore(state);
}

void NoiseScale::store() {
  write(average_.state(), average_state_);
  if (ada_) write(ada_->state(), ada_state_);
}

std::string describe_noise(const optim::GradientNoise& noise, std::int64_t global_batch) {
  const double scale = noise.scale();
  if (!std::isfinite(scale)) {
    return text("largest useful batch: not to be told, the gradient is lost in its noise at ", global_batch,
                " samples per step, so it is far larger");
  }
  const auto rounded = std::max<std::int64_t>(1, std::llround(scale));
  return text(
      "largest useful batch: about ", rounded, " samples (gradient noise scale over the last part of ",
      "the run); its ", global_batch, " samples per step are ",
      std::round(100 * static_cast<double>(global_batch) / static_cast<double>(rounded)) / 100, " of that");
}

void check_noise_scale(const ParallelPlan& plan) {
  const RunConfig& config = plan.config();
  const bool adapts = uses_ada_scale(config);
  if (config.train.noise_scale_every_steps == 0 && !adapts) return;
  using Parallel = ParallelOptions;
  const std::string what =
      adapts ? text("lr.scale_with_batch = \"adascale\"")
             : text("train.noise_scale_every_steps = ", config.train.noise_scale_every_steps);
  const Cure without = [](RunConfig& changed) {
    changed.train.noise_scale_every_steps = 0;
    if (uses_ada_scale(changed)) changed.learning_rate.scale_with_batch = "linear";
  };
  const auto refuse_if = [&](bool found, const Cure& cure, const auto&... reason) {
    if (found) throw Refusal(text(what, ": ", reason...), {cure, without});
  };
  refuse_if(plan.served(), set(&RunConfig::parallel, &Parallel::mode, "all-reduce"),
            "parallel.mode = \"ps\": servers add gradients up, and no rank has their mean");
  refuse_if(plan.trains_apart(), replicas_together(), "parallel.local_steps = ", config.parallel.local_steps,
            ": sites take steps of their own, and there is no mean of their gradients");
  refuse_if(plan.asynchronous(), synchronous_schedule(), "parallel.schedule = \"", config.parallel.schedule,
            "\" updates each stage on its own time, and there is no gradient of all stages");
  refuse_if(config.parallel.tensor > 1, set(&RunConfig::parallel, &Parallel::tensor, 1),
            "parallel.tensor = ", config.parallel.tensor,
            " cuts layers, and a micro-batch's own gradient is whole on no rank");
  refuse_if(config.parallel.context > 1, set(&RunConfig::parallel, &Parallel::context, 1),
            "parallel.context = ", config.parallel.context,
            " cuts sequences, and a micro-batch's own gradient is whole on no rank");
  refuse_if(plan.rounding().is_lossy, set(&RunConfig::parallel, &Parallel::compression, "none"),
            "parallel.compression = \"", config.parallel.compression,
            "\": what arrives in a step is not the mean of the gradients that were sent in it");
  refuse_if(plan.exact(), set(&RunConfig::run, &RunOptions::exact, false),
            "run.exact = true: squares are added up rank by rank, not along one tree");
  refuse_if(plan.num_parts() < 2, set(&RunConfig::train, &TrainOptions::accumulation, 2),
            "the noise is told by the differences between micro-batches, and one rank with "
            "train.accumulation = 1 has one");
  if (!adapts) return;
  const std::int64_t reference = config.learning_rate.reference_batch;
  optim::AdaScale sound(reference);
  const std::int64_t smallest = smallest_batch(config.train);
  const std::string named = config.train.batch_ramp_sizes.empty()
                                ? text("train.global_batch = ", smallest)
                                : text("the first of train.batch_ramp_sizes, ", smallest, ",");
  refuse_if(smallest < reference,
            set(&RunConfig::learning_rate, &optim::LearningRateOptions::reference_batch, smallest), named,
            " is below lr.reference_batch = ", reference, ", and a gain is for steps of more samples");
  refuse_if(
      !optim::gain_exponent(config.optimizer.name),
      set(&RunConfig::optimizer, &optim::OptimizerOptions::name, "sgd"), "optimizer.name = \"",
      config.optimizer.name,
      "\" makes updates of the same size whatever the noise of the gradient, and no gain is defined for "
      "it; scale it with \"linear\" or \"sqrt\"");
}

}  // namespace trireme::train
