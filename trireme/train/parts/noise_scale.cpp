#include "trireme/train/parts/noise_scale.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <type_traits>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/checkpoint/checkpoint_part.h"
#include "trireme/optim/ada_scale.h"
#include "trireme/parallel/data/gradient_squares.h"
#include "trireme/train/config/batch_ramp.h"
#include "trireme/train/plan/internal/cures.h"
#include "trireme/train/run/run.h"
#include "trireme/train/step/internal/all_parts.h"

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

namespace {

class NoiseScale final : public StepPart {
 public:
  explicit NoiseScale(const ParallelPlan& plan)
      : every_steps_(plan.config().train.noise_scale_every_steps),
        refuses_shared_(plan.is_cut()),
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

  void attach(const TrainerObjects& objects) override {
    if (refuses_shared_) refuse_shared(objects.model.layers);
    squares_.emplace(objects.pipeline.weights());
    // Of the ranks that compute on the same micro-batches, one counts them.
    counts_shares_ = objects.groups.pipeline.rank() == 0;
    rate_ = &objects.learning_rate;
    batches_ = &objects.batches;
  }
  /// With AdaScale the rate becomes the schedule's at the progress so far, times what the gain makes of it.
  void begin_step(Step& step) override {
    load();
    measures_ = ada_ || step.report.step % every_steps_ == 0;
    step.wants_norm = step.wants_norm || measures_;
    shares_ = 0;
    if (measures_) squares_->begin();
    if (!ada_) return;
    step.report.progress = ada_->progress();
    step.report.gain = ada_->gain(step.report.step, step.report.samples);
    step.report.lr = rate_->at(static_cast<std::int64_t>(std::floor(ada_->progress()))) *
                     std::pow(*step.report.gain, exponent_);
  }
  void microbatch_enters(const data::Example& samples, double weight) override {
    const double share = batches_->count_of(samples) * weight;
    shares_ += share * share;
  }
  /// This rank's sums go into its report.
  void end_step(Step& step) override {
    StepReport& report = step.report;
    if (ada_ && !report.skipped) ada_->advance(*report.gain);
    if (measures_) {
      const double scale = report.loss_scale.value_or(1), norm = report.grad_norm.value_or(0);
      report.squares = {.of_parts = squares_->take() / (scale * scale),
                        .of_mean = norm * norm,
                        .shares = counts_shares_ ? shares_ : 0,
                        .samples = static_cast<double>(report.samples)};
    }
    store();
  }
  void reported(StepReport& report, std::int64_t /*steps_done*/) override {
    const auto found =
        report.squares && !report.skipped ? optim::estimate_noise(*report.squares) : std::nullopt;
    if (found) {
      average_.add(*found);
      if (ada_) ada_->observe(report.step, *found, static_cast<double>(report.samples));
      store();
    }
    if (const auto mean = noise()) report.noise_scale = mean->scale();
  }
  /// With AdaScale: the scale-invariant steps of the schedule are over.
  bool is_over() const override { return ada_ && ada_->progress() >= schedule_steps_; }
  void add_state(StateParts& state) override {
    checkpoint::TensorMap tensors = {{"average", average_state_}};
    if (ada_) tensors.emplace("ada_scale", ada_state_);
    state.push_back(state_part(text(checkpoint::kOptimizerPrefix, "noise/"), tensors, {}));
    keep_where_not_stored(state.back());
  }
  void restored(std::int64_t /*steps_done*/) override { load(); }
  void summarize(RunResult& result) const override { result.noise = noise(); }

 private:
  std::optional<optim::GradientNoise> noise() const {
    if (average_.count() == 0) return std::nullopt;
    return average_.mean();
  }
  /// The state may have been restored in place.
  void load() {
    optim::NoiseAverage::State average;
    read(average_state_, average);
    average_.restore(average);
    if (!ada_) return;
    optim::AdaScale::State state;
    read(ada_state_, state);
    ada_->restore(state);
  }
  void store() {
    write(average_.state(), average_state_);
    if (ada_) write(ada_->state(), ada_state_);
  }

  const std::int64_t every_steps_;  ///< 0: what AdaScale looks at alone
  const bool refuses_shared_;
  bool counts_shares_ = false;
  const optim::LearningRate* rate_ = nullptr;
  const BatchFeed* batches_ = nullptr;
  std::optional<parallel::GradientSquares> squares_;
  optim::NoiseAverage average_;
  std::optional<optim::AdaScale> ada_;
  double exponent_ = 1;  ///< of the gain
  double schedule_steps_ = 0;
  at::Tensor average_state_, ada_state_;
  bool measures_ = false;
  double shares_ = 0;  ///< squares of those of this step
};

}  // namespace

std::unique_ptr<StepPart> make_noise_scale(const PartSetup& setup) {
  const RunConfig& config = setup.plan.config();
  if (config.train.noise_scale_every_steps == 0 && !uses_ada_scale(config)) return nullptr;
  return std::make_unique<NoiseScale>(setup.plan);
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
