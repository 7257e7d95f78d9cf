#include "trireme/train/config/internal/config_keys.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/data/transform.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/graphed_step.h"
#include "trireme/train/config/internal/config_rows.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/parts/convolutions.h"

namespace trireme::train {
namespace {

/// The names of a module's table, then those of the program.
std::function<std::vector<std::string>()> names_with(std::vector<std::string> (*shipped)(),
                                                     const std::vector<std::string>& own) {
  return [=] {
    std::vector<std::string> names = shipped();
    names.insert(names.end(), own.begin(), own.end());
    return names;
  };
}

/// A row for an option whose default is the optimizer's. A resume changes it only if it is named, as the
/// defaults have changed between versions.
template <class Field>
ConfigKey of_optimizer(std::string name, std::optional<Field> optim::OptimizerOptions::*field,
                       std::string meaning, Allowed allowed = {}) {
  return by_name(
      {.name = std::move(name),
       .meaning = std::move(meaning),
       .allowed = std::move(allowed),
       .get =
           [=](const RunConfig& config) {
             return ConfigValue(*(optim::with_defaults(config.optimizer).*field));
           },
       .set = [=](RunConfig& config,
                  const ConfigValue& value) { config.optimizer.*field = std::get<Field>(value); }});
}

}  // namespace

std::vector<ConfigKey> make_config_key_table(const OwnNames& own) {
  using C = RunConfig;
  using Run = RunOptions;
  using Data = data::DataOptions;
  using Model = model::ModelOptions;
  using Objective = objective::ObjectiveOptions;
  using Train = TrainOptions;
  using Opt = optim::OptimizerOptions;
  using Scaler = optim::LossScalerOptions;
  using Lr = optim::LearningRateOptions;
  using Comm = comm::ContextOptions;
  const Allowed one_up{.least = 1}, zero_up{.least = 0}, fraction{.least = 0, .below = 1},
      share{.least = 0, .most = 1};
  const Allowed count{.least = 1, .most = kMaxInt}, below{.path = PathForm::kBelow};
  std::vector<ConfigKey> table = {
      key("run.name", &C::run, &Run::name, "name of the run and of its folder",
          {.path = PathForm::kOneComponent}),
      key("run.folder", &C::run, &Run::folder, "folder that holds the runs"),
      stays(
          key("run.seed", &C::run, &Run::seed, "seed of the initial weights and of the shuffling", zero_up)),
      stays(
          key("run.exact", &C::run, &Run::exact,
              "bitwise-reproducible training: the same bits for any number of replicas, pipeline stages and "
              "micro-batches per rank with the same micro-batches in total, and for every parallel.zero")),
      key("run.log_every_steps", &C::run, &Run::log_every_steps, "steps between two lines of metrics.jsonl",
          one_up),
      key("run.tensorboard", &C::run, &Run::tensorboard,
          "also write the contents of metrics.jsonl as TensorBoard event files"),
      key("run.trace", &C::run, &Run::trace,
          "file, in the run's folder, for a trace of all ranks (Perfetto); empty: none", below),
      key("run.timeline", &C::run, &Run::timeline,
          "file, in the run's folder, for a page with planned and measured steps of each rank; empty: none",
          below),
      key("run.trace_steps", &C::run, &Run::trace_steps,
          "\"100:120\": trace only these steps, inclusive; the timeline shows the first three; empty: all, "
          "and 3 to 5 for a timeline alone"),
      stays(key("data.name", &C::data, &Data::name, "dataset",
                {.names = names_with(data::data_names, own.datasets)})),
      key("data.path", &C::data, &Data::path,
          "folder of its files, or its URL; for text and csv the file; empty: the location of Debian's package"),
      key("data.workers", &C::data, &Data::workers,
          "threads per rank that prefetch; 0: auto-tuned, from one thread on", {.least = 0, .most = 1024}),
      key("data.prefetch", &C::data, &Data::prefetch,
          "steps to prefetch; with workers = 0 more, if that avoids waiting", {.least = 1, .most = 65536}),
      key("data.read_ahead_mib", &C::data, &Data::read_ahead_mib,
          "limit of the memory of a rank's prefetched batches for auto-tuned prefetching", one_up),
      stays(key("data.drop_last", &C::data, &Data::drop_last,
                "drops the last batch of an epoch if it is not full; its samples occur in other epochs")),
      stays(key("data.open_shards", &C::data, &Data::open_shards,
                "for data in shards: number of shards that are read and shuffled at a time; 0: all",
                zero_up)),
      stays(key("data.balance", &C::data, &Data::balance,
                "distribution of a global batch over ranks and micro-batches: count: equal numbers of "
                "samples; cost: equal cost, for samples that differ such as texts; dynamic: by the measured "
                "speed of each rank (straggler mitigation)",
                {.names =
                     [] {
                       return std::vector<std::string>{"count", "cost", "dynamic"};
                     }})),
      stays(
          key("data.block", &C::data, &Data::block, "text: characters, or packed tokens, per sample", count)),
      stays(key("data.image_size", &C::data, &Data::image_size,
                "image_folder, also packed: height and width to which images are resized", count)),
      key("data.most_pixels", &C::data, &Data::most_pixels,
          "maximum height times width of an image; a larger one is not decoded", one_up),
      key("data.retries", &C::data, &Data::retries,
          "retries of a read after a possibly temporary error, with pauses from 0.1 s on that double",
          {.least = 0, .most = 30}),
      stays(key(
          "data.undecodable", &C::data, &Data::undecodable,
          "policy for corrupt samples: end the run with an error, or skip: the next sample is substituted",
          {.names =
               [] {
                 return std::vector<std::string>{"error", "skip"};
               }})),
      stays(key("data.augment", &C::data, &Data::augment,
                "images: augmentations of each training image, in this order",
                {.names = data::augmentation_names})),
      stays(key("data.crop_padding", &C::data, &Data::crop_padding,
                "augmentation crop: black pixels of padding before the random crop", zero_up)),
      key("data.test_path", &C::data, &Data::test_path,
          "csv, numpy, webdataset: test data, in the form of data.path; empty: found in the folder, or every "
          "tenth sample"),
      stays(key("data.inputs", &C::data, &Data::inputs,
                "csv, numpy, webdataset: columns, arrays or members that are inputs of the model; empty: csv "
                "all except the targets, numpy x, webdataset images or all except the targets")),
      stays(key("data.targets", &C::data, &Data::targets,
                "the same for the targets; empty: csv the last column, numpy y, webdataset cls, if present")),
      stays(key("data.target", &C::data, &Data::target,
                "whether a target is a class or a number; auto: for csv and numpy as the objective requires, "
                "for other data as they define it",
                {.names =
                     [] {
                       return std::vector<std::string>{"auto", "class", "number"};
                     }})),
      key("data.num_classes", &C::data, &Data::num_classes,
          "number of classes; 0: from the labels, in which every class from 0 on has to occur", zero_up),
      stays(key("data.header", &C::data, &Data::header,
                "csv: whether the first line contains column names; auto: yes if no cell of it is a number, "
                "no if all are",
                {.names =
                     [] {
                       return std::vector<std::string>{"auto", "yes", "no"};
                     }})),
      stays(key("data.separator", &C::data, &Data::separator, "csv: the character between two cells")),
      key("data.cache", &C::data, &Data::cache,
          "folder for data cached between runs: blocks of URLs, indexes of shards; empty: no cache"),
      key("data.cache_mib", &C::data, &Data::cache_mib, "maximum MiB of blocks in data.cache",
          {.least = 16, .most = kMaxInt}),
      key("data.cache_memory_mib", &C::data, &Data::cache_memory_mib,
          "MiB of the most recently used blocks that each rank also caches in memory",
          {.least = 0, .most = kMaxInt}),
      key("data.cache_samples_mib", &C::data, &Data::cache_samples_mib,
          "images: MiB that each rank caches in memory before augmentation, so that they are decoded once; "
          "0: none",
          {.least = 0, .most = kMaxInt}),
      key("data.private_redirects", &C::data, &Data::private_redirects,
          "allow URLs to redirect to loopback, link-local and private addresses; data.path itself may always "
          "be one"),
      stays(key("model.name", &C::model, &Model::name, "model",
                {.names = names_with(model::model_names, own.models)})),
      stays(key("model.hidden", &C::model, &Model::hidden, "mlp: widths of the hidden layers", count)),
      stays(key("model.layers", &C::model, &Model::layers, "gpt: blocks", one_up)),
      stays(key("model.heads", &C::model, &Model::heads, "gpt: attention heads per block", one_up)),
      stays(key("model.width", &C::model, &Model::width, "gpt: embedding width; a multiple of the heads",
                one_up)),
      key("model.weights", &C::model, &Model::weights,
          "file of the initial weights (safetensors, an index of several, or Python's torch.save of a dict); "
          "empty: from run.seed"),
      stays(key("objective.name", &C::objective, &Objective::name, "loss function",
                {.names = names_with(objective::objective_names, own.objectives)})),
      key("objective.metrics", &C::objective, &Objective::metrics,
          "metrics of evaluations besides the loss; empty: the default of the objective",
          {.names = names_with(objective::metric_names, own.metrics)}),
      key("objective.top_k", &C::objective, &Objective::top_k,
          "metric top_k: correct if among this many predictions", one_up),
      key("objective.label_smoothing", &C::objective, &Objective::label_smoothing,
          "cross_entropy: fraction of each target that is spread over all classes", fraction),
      key("objective.ignored_classes", &C::objective, &Objective::ignored_classes,
          "cross_entropy: targets that do not count (padding); they may be outside the classes"),
      key("objective.class_weights", &C::objective, &Objective::class_weights,
          "cross_entropy: weight of a target of each class; empty: equal", zero_up),
      key("objective.positive_weight", &C::objective, &Objective::positive_weight,
          "binary_cross_entropy: weight of a target of 1, relative to one of 0", {.above = 0}),
      stays(key("objective.one_hot", &C::objective, &Objective::one_hot,
                "mean_squared_error: targets are classes, compared as one-hot rows of 0 and 1")),
      key("train.epochs", &C::train, &Train::epochs, "passes over the training data", count),
      key("train.max_steps", &C::train, &Train::max_steps, "ends the run after this many steps; 0: no limit",
          zero_up),
      stays(key("train.global_batch", &C::train, &Train::global_batch,
                "global batch size: samples per step, of all ranks together", one_up)),
      stays(key("train.batch_ramp_sizes", &C::train, &Train::batch_ramp_sizes,
                "batch-size ramp-up: the sizes before train.global_batch, increasing", one_up)),
      stays(key("train.batch_ramp_steps", &C::train, &Train::batch_ramp_steps,
                "batch-size ramp-up: for each of those sizes the step of the run after which the next one "
                "begins, increasing",
                one_up)),
      stays(key("train.batch_ramp_by", &C::train, &Train::batch_ramp_by,
                "batch-size ramp-up: the next size begins at train.batch_ramp_steps, or when the measured "
                "gradient noise scale reaches it",
                {.names = batch_ramp_names})),
      key("train.accumulation", &C::train, &Train::accumulation,
          "gradient accumulation: micro-batches per rank and step", count),
      stays(key("train.precision", &C::train, &Train::precision,
                "number format of the forward pass (mixed precision)", {.names = precision_names})),
      key("train.device", &C::comm, &Comm::device,
          "device of the ranks: auto (a GPU if one is usable, else the CPU), cpu, cuda, or the name of "
          "another vendor's device in libtorch"),
      by_name(key("train.clip_norm", &C::train, &Train::clip_norm,
                  "gradient clipping: maximum 2-norm of all gradients together; 0: none, the default for "
                  "asynchronous pipelines",
                  zero_up),
              0.0),
      stays(key("train.convolution", &C::train, &Train::convolution,
                "kernels of f32 convolutions on the CPU: the fastest on rank 0's machine, ATen's own choice, "
                "oneDNN's, or one matrix product over the batch",
                {.names = convolution_names})),
      stays(key("train.memory_format", &C::train, &Train::memory_format,
                "memory layout of images and their activations on the CPU: the faster one with the kernels "
                "of train.convolution, contiguous, or channels_last",
                {.names = memory_format_names})),
      key("train.non_finite", &C::train, &Train::non_finite,
          "policy for non-finite gradients: stop the run, or skip the step; fp16 always skips",
          {.names =
               [] {
                 return std::vector<std::string>{"stop", "skip"};
               }}),
      key("train.max_skipped_steps", &C::train, &Train::max_skipped_steps,
          "this many consecutive skipped steps end the run as diverged", one_up),
      key("train.recompute_layers", &C::train, &Train::recompute_layers,
          "activation checkpointing: layers that keep only their inputs for the backward and are recomputed; "
          "names, with * as wildcard; [\"*\"]: all"),
      key("train.activation_budget", &C::train, &Train::activation_budget,
          "activation checkpointing: maximum bytes of activations on a rank, such as \"512MiB\"; layers are "
          "selected for the least added time; empty: no limit"),
      key("train.noise_scale_every_steps", &C::train, &Train::noise_scale_every_steps,
          "steps between measurements of the gradient noise scale, which gives the largest useful batch; 0: "
          "none",
          zero_up),
      key("train.graph", &C::train, &Train::graph,
          "CUDA graphs: the forward and backward of layers are captured once and replayed; on: a layer that "
          "cannot be captured ends the run; auto: it runs as it is; off: none is captured",
          {.names = parallel::graph_use_names}),
      key("train.adapt", &C::train, &Train::adapt,
          "adaptive training: one controller changes one setting at a time, keeps what shortens the steps, "
          "and "
          "records each decision"),
      key("train.ema_decay", &C::train, &Train::ema_decay,
          "exponential moving average (EMA) of the parameters for evaluations, over 1 / (1 - decay) steps; "
          "0: none",
          fraction),
      key("scaler.initial", &C::scaler, &Scaler::initial, "fp16: loss scale of the first step", {.above = 0}),
      key("scaler.factor", &C::scaler, &Scaler::factor, "fp16: factor by which the scale grows and shrinks",
          {.above = 1}),
      key("scaler.interval", &C::scaler, &Scaler::interval,
          "fp16: consecutive good steps after which the scale grows", one_up),
      key("scaler.least", &C::scaler, &Scaler::least, "fp16: minimum scale; an overflow at it ends the run",
          {.above = 0}),
      key("scaler.most", &C::scaler, &Scaler::most, "fp16: maximum scale", {.above = 0}),
      stays(key("optimizer.name", &C::optimizer, &Opt::name, "optimizer", {.names = optim::optimizer_names})),
      of_optimizer(
          "optimizer.lr", &Opt::lr,
          "learning rate before the schedule; not given: sgd, adam, adamw, lamb, muon 0.001, adagrad, "
          "rmsprop 0.01, lion 0.0001, lars 0.1",
          {.above = 0}),
      of_optimizer(
          "optimizer.weight_decay", &Opt::weight_decay,
          "sgd, adam, adagrad, rmsprop, lars: L2; adamw, lion, muon: decoupled; lamb: within the trust "
          "ratio; not given: adamw 0.01, muon 0.1, all others 0",
          zero_up),
      key("optimizer.decay_1d", &C::optimizer, &Opt::decay_1d,
          "false: no weight decay for biases and norms (at most one dim), and trust ratio 1 for them in lars "
          "and lamb"),
      of_optimizer("optimizer.momentum", &Opt::momentum,
                   "momentum; not given: sgd, rmsprop 0, lars 0.9, muon 0.95", fraction),
      of_optimizer("optimizer.nesterov", &Opt::nesterov,
                   "Nesterov momentum; not given: sgd false, muon true"),
      key("optimizer.beta1", &C::optimizer, &Opt::beta1,
          "adamw, adam, lion, lamb, adamw part of muon: decay of the first moment", fraction),
      of_optimizer("optimizer.beta2", &Opt::beta2,
                   "adamw, adam, lamb, adamw part of muon: decay of the second moment, not given 0.999; "
                   "lion: of the first, after the update, not given 0.99",
                   fraction),
      key("optimizer.alpha", &C::optimizer, &Opt::alpha, "rmsprop: decay of the mean square", fraction),
      key("optimizer.centered", &C::optimizer, &Opt::centered,
          "rmsprop: divides by the standard deviation of the gradient"),
      of_optimizer("optimizer.eps", &Opt::eps,
                   "added to the denominator; not given: adamw, adam, rmsprop, adamw part of muon 1e-8, "
                   "adagrad 1e-10, lamb 1e-6",
                   {.above = 0}),
      key("optimizer.trust_coefficient", &C::optimizer, &Opt::trust_coefficient,
          "lars: fraction of its own norm by which a tensor moves at a rate of 1", {.above = 0}),
      by_name(key("optimizer.muon_scale", &C::optimizer, &Opt::muon_scale,
                  "muon: scale of updates: PyTorch's default, or that of adamw's updates, so that its rate "
                  "and decay are suitable",
                  {.names = optim::muon_scale_names})),
      stays(key("optimizer.muon_spares", &C::optimizer, &Opt::muon_spares,
                "muon: tensors whose names contain one of these are updated by adamw, like all with at most "
                "one dim")),
      key("optimizer.muon_adamw_rate", &C::optimizer, &Opt::muon_adamw_rate,
          "muon: learning rate of the adamw part, as a multiple of optimizer.lr", zero_up),
      key("lr.schedule", &C::learning_rate, &Lr::schedule, "learning-rate schedule",
          {.names = optim::learning_rate_names}),
      key("lr.warmup_steps", &C::learning_rate, &Lr::warmup_steps,
          "steps over which the rate grows from 0 (one_cycle: from lr.initial_fraction)", zero_up),
      key("lr.initial_fraction", &C::learning_rate, &Lr::initial_fraction,
          "one_cycle: the warm-up begins at this fraction of optimizer.lr", share),
      key("lr.final_fraction", &C::learning_rate, &Lr::final_fraction,
          "cosine, polynomial, wsd, one_cycle: final fraction of optimizer.lr; reduce_on_plateau: the "
          "minimum",
          share),
      key("lr.factor", &C::learning_rate, &Lr::factor,
          "step, multi_step, exponential, reduce_on_plateau: factor of each decay of the rate",
          {.below = 1, .above = 0}),
      key("lr.period_steps", &C::learning_rate, &Lr::period_steps,
          "step: steps between two decays by lr.factor; exponential: steps over which it decays by that",
          zero_up),
      key("lr.milestones", &C::learning_rate, &Lr::milestones,
          "multi_step: steps of the run at which the rate decays by lr.factor", one_up),
      key("lr.power", &C::learning_rate, &Lr::power, "polynomial: its power; 1: linear", {.above = 0}),
      key("lr.decay_steps", &C::learning_rate, &Lr::decay_steps,
          "wsd: steps at the end of the run over which the rate decays", zero_up),
      key("lr.patience", &C::learning_rate, &Lr::patience,
          "reduce_on_plateau: consecutive evaluations without improvement that are tolerated", zero_up),
      key("lr.threshold", &C::learning_rate, &Lr::threshold,
          "reduce_on_plateau: an improvement has to exceed this fraction of the best value", fraction),
      key("lr.cooldown", &C::learning_rate, &Lr::cooldown,
          "reduce_on_plateau: evaluations after a decay that do not count", zero_up),
      key("lr.scale_with_batch", &C::learning_rate, &Lr::scale_with_batch,
          "scaling of optimizer.lr with train.global_batch / lr.reference_batch",
          {.names = optim::batch_scaling_names}),
      key("lr.reference_batch", &C::learning_rate, &Lr::reference_batch,
          "samples per step for which optimizer.lr was chosen", zero_up),
      key("eval.every_steps", &C::eval, &EvalOptions::every_steps,
          "steps between evaluations; 0: after every epoch. The end of the run is always evaluated", zero_up),
      key("eval.patience", &C::eval, &EvalOptions::patience,
          "early stopping: consecutive evaluations without improvement after which the run ends; 0: no early "
          "stopping",
          zero_up),
      stays(key("eval.patience_metric", &C::eval, &EvalOptions::patience_metric,
                "early stopping: \"loss\", or a measured metric")),
      key("checkpoint.every_steps", &C::checkpoint, &CheckpointOptions::every_steps,
          "steps between checkpoints; 0: none", zero_up),
      key("checkpoint.keep", &C::checkpoint, &CheckpointOptions::keep, "number of latest checkpoints to keep",
          count),
      stays(key("checkpoint.best", &C::checkpoint, &CheckpointOptions::best,
                "also keep the checkpoint of the best evaluation: by \"loss\", or by a measured metric")),
      key("checkpoint.asynchronous", &C::checkpoint, &CheckpointOptions::asynchronous,
          "write checkpoints in the background; false: training waits for the disk"),
      key("checkpoint.interval", &C::checkpoint, &CheckpointOptions::interval,
          "\"steps\": a checkpoint every checkpoint.every_steps; \"auto\": the first one after that many "
          "steps (0: "
          "10), then at Daly's interval for the measured cost of a save and the failure rate",
          {.names = checkpoint_interval_names}),
      key("checkpoint.mean_time_between_failures_s", &C::checkpoint,
          &CheckpointOptions::mean_time_between_failures_s,
          "checkpoint.interval = \"auto\": of the whole job; 0: estimated from the failures of this run, and "
          "one "
          "that is assumed per day",
          zero_up),
      key("checkpoint.in_memory_every_steps", &C::checkpoint, &CheckpointOptions::in_memory_every_steps,
          "steps between copies of the state in the memory of two ranks each, for an elastic job; 0: none",
          zero_up),
  };
  for (ConfigKey& row : parallel_key_table()) table.push_back(std::move(row));
  return table;
}

const std::vector<ConfigKey>& config_key_table(const RunConfig& config) {
  static const std::vector<ConfigKey> kShipped = make_config_key_table();
  return config.registry ? config.registry->keys() : kShipped;
}

bool is_named(const RunConfig& config, const ConfigKey& key) {
  if (config.named) return config.named->contains(key.name);
  RunConfig defaults;
  defaults.optimizer.name = config.optimizer.name;
  return to_toml(key.get(config)) != to_toml(key.get(defaults));
}

std::vector<ConfigKeyInfo> config_keys(const std::shared_ptr<const Registry>& registry) {
  std::vector<ConfigKeyInfo> infos;
  RunConfig defaults;
  defaults.registry = registry;
  for (const ConfigKey& row : config_key_table(defaults)) {
    const ConfigValue value = row.get(defaults);
    infos.push_back(
        {row.name, type_name(value), to_toml(value), row.allowed.describe(), row.meaning, row.on_resume});
  }
  return infos;
}

std::string describe(const RunConfig& config) {
  std::string result, table;
  for (const ConfigKey& row : config_key_table(config)) {
    const std::size_t dot = row.name.find('.');
    if (row.name.substr(0, dot) != table) {
      table = row.name.substr(0, dot);
      result += text(result.empty() ? "" : "\n", "[", table, "]\n");
    }
    result += text(row.name.substr(dot + 1), " = ", to_toml(row.get(config)), "\n");
  }
  return result;
}

}  // namespace trireme::train
