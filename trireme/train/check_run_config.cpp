#include <functional>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/model/untouched.h"
#include "trireme/parallel/data/sparse_embeddings.h"
#include "trireme/train/internal/check.h"
#include "trireme/train/placement.h"
#include "trireme/train/trainer.h"

namespace trireme::train {
namespace {

void check_sizes(const ParallelPlan& plan, const data::DataSource& data) {
  const RunConfig& config = plan.config();
  const std::int64_t world_size = plan.world_size();
  const std::int64_t samples = data.train->size();
  require(samples >= world_size, "data set ", data.name, " has ", samples,
          " training samples, fewer than the ", world_size, " ranks");
  const std::int64_t batches = (samples + config.train.global_batch - 1) / config.train.global_batch;
  const std::int64_t steps = total_steps_of(config.train, batches);
  require(config.learning_rate.warmup_steps <= steps, "lr.warmup_steps = ", config.learning_rate.warmup_steps,
          " is longer than the run of ", steps, " steps (train.epochs = ", config.train.epochs,
          ", train.max_steps = ", config.train.max_steps, ")");
  make_learning_rate(config, steps);
}

/// One row of logits for every target of a sample, one column for every class.
void try_model(model::Model& model, const data::DataSource& data) {
  const at::NoGradGuard no_grad;
  const model::EvaluationMode mode(model);
  const model::Untouched untouched(model);
  const std::int64_t first = 0;
  const at::Tensor logits = model.forward(data.train->get_batch({&first, 1}).input);
  const std::int64_t rows = logits.dim() < 2 ? 0 : logits.numel() / logits.size(-1);
  require(rows == data.targets_per_sample && logits.size(-1) == data.num_classes, "a sample has ",
          data.targets_per_sample, " targets of ", data.num_classes,
          " classes, and the model makes of it a tensor of shape ", logits.sizes());
}

/// The model that `make` returns, when it can take the data; `what` names it where it cannot.
std::shared_ptr<model::Model> tried(const std::string& what, const data::DataSource& data,
                                    const std::function<std::shared_ptr<model::Model>()>& make) {
  const std::string both = text(what, " cannot take data.name = \"", data.name, "\": ");
  try {
    std::shared_ptr<model::Model> model = make();
    parallel::refuse_sparse_embeddings(*model, "");
    try_model(*model, data);
    return model;
  } catch (const InvalidArgument& reason) {
    throw InvalidArgument(both + reason.what());
  } catch (const c10::Error& reason) {
    throw InvalidArgument(both + reason.what_without_backtrace());
  }
}

}  // namespace

std::shared_ptr<model::Model> make_checked_model(const ParallelPlan& plan, const data::DataSource& data) {
  const RunConfig& config = plan.config();
  std::shared_ptr<model::Model> model = tried(text("model.name = \"", config.model.name, "\""), data, [&] {
    return model::make_model(config.model, data.input_shape, data.num_classes,
                             static_cast<std::uint64_t>(config.run.seed));
  });
  fit(plan, *model);
  return model;
}

std::shared_ptr<model::Model> checked_model(std::shared_ptr<model::Model> own, const ParallelPlan& plan,
                                            const data::DataSource& data) {
  std::shared_ptr<model::Model> model =
      tried(text("the model of type ", own->name()), data, [&] { return std::move(own); });
  fit(plan, *model);
  return model;
}

std::unique_ptr<optim::LearningRate> make_learning_rate(const RunConfig& config, std::int64_t total_steps) {
  const double lr = optim::scaled_lr(config.learning_rate, config.optimizer.lr, config.train.global_batch);
  return optim::make_learning_rate(config.learning_rate, lr, total_steps);
}

void check_data_of(const ParallelPlan& plan, const data::DataSource& data) {
  check_data(data);
  check_sizes(plan, data);
}

ParallelPlan check_run_config(const RunConfig& config, int world_size) {
  const ParallelPlan plan = resolve_plan(config, world_size);
  const data::DataSource data = data::open_data(config.data, static_cast<std::uint64_t>(config.run.seed));
  check_data_of(plan, data);
  return fit(plan, *make_checked_model(plan, data));
}

}  // namespace trireme::train
