#include <algorithm>
#include <functional>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/out_of_memory.h"
#include "trireme/base/run_main.h"
#include "trireme/base/text.h"
#include "trireme/model/deferred.h"
#include "trireme/model/untouched.h"
#include "trireme/parallel/data/sparse_embeddings.h"
#include "trireme/train/config/batch_ramp.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/plan/placement.h"
#include "trireme/train/step/internal/check.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

void check_sizes(const ParallelPlan& plan, const data::DataSource& data) {
  const RunConfig& config = plan.config();
  const std::int64_t world_size = plan.world_size();
  const std::int64_t samples = data.train->size();
  require(samples >= world_size, "data set ", data.name, " has ", samples,
          " training samples, fewer than the ", world_size, " ranks");
  const std::int64_t steps = StepSchedule(config, batch_layout(config, samples)).total_steps();
  require(config.learning_rate.warmup_steps <= steps, "lr.warmup_steps = ", config.learning_rate.warmup_steps,
          " is longer than the run of ", steps, " steps (train.epochs = ", config.train.epochs,
          ", train.max_steps = ", config.train.max_steps, ")");
  make_learning_rate(config, steps);
}

/// Ranks that hold parts of one replica compute on the same samples, so these must be repeatable.
void check_repeatable(const ParallelPlan& plan, const data::DataSource& data) {
  if (data.train->is_repeatable()) return;
  require(
      plan.num_replicas() == plan.world_size(), "the samples of ", data.name,
      " are made as they are asked for, each rank's for itself, and ranks that hold parts of one replica "
      "need the same: train with replicas alone (parallel.pipeline, tensor and context = 1), or make each "
      "sample from its place and say so (ProducedOptions::keyed)");
}

/// Without a second split a run evaluates nothing.
void check_evaluations(const ParallelPlan& plan, const data::DataSource& data) {
  if (data.test) return;
  const RunConfig& config = plan.config();
  const auto needs_none = [&](bool found, const auto&... key) {
    require(!found, key..., " needs evaluations, and data set ", data.name,
            " has no second split to evaluate on; give it one (data.test_path, in C++ DataSource::test), or "
            "leave the key out");
  };
  needs_none(config.checkpoint.best != "none", "checkpoint.best = \"", config.checkpoint.best, "\"");
  needs_none(config.eval.patience > 0, "eval.patience = ", config.eval.patience);
  needs_none(config.eval.every_steps > 0, "eval.every_steps = ", config.eval.every_steps);
  needs_none(config.learning_rate.schedule == "reduce_on_plateau", "lr.schedule = \"reduce_on_plateau\"");
}

/// Tries model, loss and metrics on one sample, and leaves the model unchanged.
void try_model(model::Model& model, const data::DataSource& data, const objective::Objective& objective) {
  const at::NoGradGuard no_grad;
  const model::EvaluationMode mode(model);
  const model::Untouched untouched(model);
  const data::Example batch = data.train->trial_batch(1);
  const Fields outputs = model::outputs_of_trial(model, batch.input);
  require(!outputs.empty(), "the model has no output");
  objective.check_outputs(outputs, batch.target);
  const at::Tensor loss = objective.loss_all(outputs, batch.target);
  require(loss.dim() == 0 && loss.is_floating_point(), "the loss of a batch is ", loss.scalar_type(),
          " of shape ", loss.sizes(), "; expected one floating-point number, without dims");
  for (const objective::Metric& metric : objective.metrics()) metric.measure(outputs, batch.target);
}

/// Advice on inputs that libtorch rejects; empty: no known cause.
std::string advice_on_inputs(const data::DataSource& data) {
  for (const auto& [name, tensor] : data.train->trial_batch(1).input) {
    if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true))
      return text("; inputs are ", tensor.scalar_type(),
                  ", as embeddings take them, and other layers take Float (in NumPy: x.astype('float32'))");
  }
  return "";
}

struct Trial {
  const RunConfig& config;
  const data::DataSource& data;
  const ObjectivePtr& own;  ///< null: the configuration's
};

/// Returns the model of `make` if it accepts the data. Errors call it `what`.
std::shared_ptr<model::Model> tried(const std::string& what, const Trial& trial,
                                    const std::function<std::shared_ptr<model::Model>()>& make) {
  const std::string both = text(what, " cannot take data.name = \"", trial.data.name, "\": ");
  try {
    std::shared_ptr<model::Model> model = make();
    parallel::reject_sparse_embeddings(*model, "");
    try_model(*model, trial.data,
              *objective_for(trial.config, trial.own, {.data = trial.data, .model = model.get()}));
    return model;
  } catch (const InvalidArgument& reason) {
    throw InvalidArgument(both + reason.what());
  } catch (const c10::Error& reason) {
    if (!out_of_memory_in(reason.what_without_backtrace()).empty()) throw;
    throw InvalidArgument(text(both, reason.what_without_backtrace(), advice_on_inputs(trial.data)));
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    if (failure.known) throw;
    throw InvalidArgument(both + failure.message);
  }
}

/// An asynchronous schedule weighs a micro-batch before the other targets of its step are known.
void check_objective(const ParallelPlan& plan, const data::DataSource& data,
                     const objective::Objective& objective) {
  require(!objective.counts_by_value() || !plan.asynchronous(), "parallel.schedule = \"",
          plan.config().parallel.schedule,
          "\" weighs each micro-batch when it begins, and this objective divides by what all targets of a "
          "step amount to (objective.ignored_classes, objective.class_weights); choose a schedule that "
          "updates at the end of a step");
  require(
      !data.train->sizes_vary() || !plan.asynchronous(), "parallel.schedule = \"",
      plan.config().parallel.schedule,
      "\" keeps micro-batches of several steps under way and has to know all their sizes ahead, and those of "
      "data set ",
      data.name,
      " vary; pad to one size (data::Padding::length), or choose a schedule that updates at the end of a "
      "step");
  std::vector<std::string> known = {"loss"};
  for (const objective::Metric& metric : objective.metrics()) known.push_back(metric.name);
  const auto check_measured = [&](const char* key, const std::string& name) {
    require(std::find(known.begin(), known.end(), name) != known.end(), key, " = \"", name,
            "\" is not measured", suggest(name, known),
            "; name it in objective.metrics, or choose one that is measured");
  };
  check_measured("eval.patience_metric", plan.config().eval.patience_metric);
  known.insert(known.begin(), "none");
  check_measured("checkpoint.best", plan.config().checkpoint.best);
}

}  // namespace

ObjectivePtr objective_for(const RunConfig& config, const ObjectivePtr& own, const objective::Task& task) {
  return own ? own : make_objective(config, task);
}

std::shared_ptr<model::Model> make_checked_model(const ParallelPlan& plan, const data::DataSource& data,
                                                 const ObjectivePtr& own) {
  const RunConfig& config = plan.config();
  const std::int64_t num_outputs = objective_for(config, own, {.data = data})->num_outputs(data);
  const auto make = [&] { return make_model(config, data, num_outputs); };
  const std::string what = text("model.name = \"", config.model.name, "\"");
  std::shared_ptr<model::Model> model = tried(what, {config, data, own}, make);
  fit(plan, *model);
  check_single_samples(*model, what, plan, data);
  return model;
}

std::shared_ptr<model::Model> checked_model(std::shared_ptr<model::Model> own_model, const ParallelPlan& plan,
                                            const data::DataSource& data, const ObjectivePtr& own) {
  const std::string what = text("the model of type ", own_model->name());
  std::shared_ptr<model::Model> model =
      tried(what, {plan.config(), data, own}, [&] { return std::move(own_model); });
  fit(plan, *model);
  check_single_samples(*model, what, plan, data);
  return model;
}

std::unique_ptr<optim::LearningRate> make_learning_rate(const RunConfig& config, std::int64_t total_steps) {
  const double rate = *optim::with_defaults(config.optimizer).lr;
  const double lr = optim::scaled_lr(config.learning_rate, rate, config.train.global_batch);
  return optim::make_learning_rate(config.learning_rate, lr, total_steps);
}

/// `rate` belongs to the full batch, and scales with the size of the batch.
double rate_for_batch(const RunConfig& config, double rate, std::int64_t batch) {
  optim::LearningRateOptions of_full = config.learning_rate;
  of_full.reference_batch = config.train.global_batch;
  return optim::scaled_lr(of_full, rate, batch);
}

void check_data_of(const ParallelPlan& plan, const data::DataSource& data, const ObjectivePtr& own) {
  const ObjectivePtr objective = objective_for(plan.config(), own, {.data = data});
  check_data(data, *objective);
  check_objective(plan, data, *objective);
  check_sizes(plan, data);
  check_evaluations(plan, data);
  check_repeatable(plan, data);
}

ParallelPlan check_run_config(const RunConfig& config, int world_size) {
  const ParallelPlan plan = resolve_plan(config, world_size);
  const data::DataSource data = open_data(config);
  check_data_of(plan, data);
  return fit(plan, *make_checked_model(plan, data));
}

}  // namespace trireme::train
