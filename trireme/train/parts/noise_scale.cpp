#include "trireme/train/parts/noise_scale.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <type_traits>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/checkpoint/checkpoint_part.h"
#include "trireme/parallel/data/gradient_squares.h"
#include "trireme/train/plan/internal/fixes.h"
#include "trireme/train/run/run.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {
namespace {

/// A tensor for a state, which is a struct of doubles.
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

/// Rejects parameters of several layers: their gradients would arrive in pieces, one per stage.
void reject_shared(const std::vector<model::Layer>& layers) {
  std::set<std::string> seen;
  for (const model::Layer& layer : layers) {
    for (const auto& [name, parameter] : layer.parameters) {
      require(
          seen.insert(name).second, "the noise of gradients cannot be measured: the parameter '", name,
          "' belongs to several layers, which are stages of their own, and a micro-batch's gradient of it "
          "is whole on none of them; leave train.noise_scale_every_steps at 0, or take one stage "
          "(parallel.pipeline = 1, parallel.zero below 3)");
    }
  }
}

class NoiseScale final : public StepPart {
 public:
  explicit NoiseScale(const ParallelPlan& plan)
      : every_steps_(plan.config().train.noise_scale_every_steps),
        rejects_shared_(plan.is_cut()),
        average_state_(room_for(average_.state())) {}

  void attach(const TrainerObjects& objects) override {
    if (rejects_shared_) reject_shared(objects.model.layers);
    squares_.emplace(objects.pipeline.weights());
    // Of the ranks that compute the same micro-batches, one counts them.
    counts_shares_ = objects.groups.pipeline.rank() == 0;
    batches_ = &objects.batches;
  }
  void begin_step(Step& step) override {
    load();
    measures_ = step.report.step % every_steps_ == 0;
    step.wants_norm = step.wants_norm || measures_;
    shares_ = 0;
    if (measures_) squares_->begin();
  }
  void microbatch_enters(const data::Example& samples, double weight) override {
    const double share = batches_->count_of(samples) * weight;
    shares_ += share * share;
  }
  /// Adds this rank's sums to its report.
  void end_step(Step& step) override {
    if (measures_) {
      const double shares = counts_shares_ ? shares_ : 0;
      step.completions.push_back([squares = squares_->take(), shares](StepReport& report) {
        const double scale = report.loss_scale.value_or(1), norm = report.grad_norm.value_or(0);
        report.squares = {.of_parts = squares.read() / (scale * scale),
                          .of_mean = norm * norm,
                          .shares = shares,
                          .samples = static_cast<double>(report.samples)};
      });
    }
    store();
  }
  void reported(StepReport& report, std::int64_t /*steps_done*/) override {
    const auto found =
        report.squares && !report.skipped ? optim::estimate_noise(*report.squares) : std::nullopt;
    if (found) {
      average_.add(*found);
      store();
    }
    if (const auto mean = noise()) report.noise_scale = mean->scale();
  }
  void add_state(StateParts& state) override {
    state.push_back(
        state_part(text(checkpoint::kOptimizerPrefix, "noise/"), {{"average", average_state_}}, {}));
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
  }
  void store() { write(average_.state(), average_state_); }

  const std::int64_t every_steps_;
  const bool rejects_shared_;
  bool counts_shares_ = false;
  const BatchFeed* batches_ = nullptr;
  std::optional<parallel::GradientSquares> squares_;
  optim::NoiseAverage average_;
  at::Tensor average_state_;
  bool measures_ = false;
  double shares_ = 0;  ///< sum of the squared fractions of this step
};

}  // namespace

std::unique_ptr<StepPart> make_noise_scale(const PartSetup& setup) {
  if (setup.plan.config().train.noise_scale_every_steps == 0) return nullptr;
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
  if (config.train.noise_scale_every_steps == 0 || plan.num_parts() >= 2) return;
  throw PlanError(text("train.noise_scale_every_steps = ", config.train.noise_scale_every_steps,
                       ": the noise is measured by the differences between micro-batches, and one rank with "
                       "train.accumulation = 1 has one"),
                  {set(&RunConfig::train, &TrainOptions::accumulation, 2),
                   set(&RunConfig::train, &TrainOptions::noise_scale_every_steps, 0)});
}

}  // namespace trireme::train
