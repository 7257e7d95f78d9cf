#include "trireme/train/config/internal/config_keys.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/data/transform.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/train/config/internal/config_rows.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/parts/convolutions.h"

namespace trireme::train {
namespace {

/// What a table of a module knows, and what a program brings.
std::function<std::vector<std::string>()> names_with(std::vector<std::string> (*shipped)(),
                                                     const std::vector<std::string>& own) {
  return [=] {
    std::vector<std::string> names = shipped();
    names.insert(names.end(), own.begin(), own.end());
    return names;
  };
}

/// A row for an option whose default is the optimizer's. A resume does not change it unless it is named: the
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
      stays(key("run.seed", &C::run, &Run::seed, "decides the initial weights and the order of samples",
                zero_up)),
      stays(key("run.exact", &C::run, &Run::exact,
                "the same bits for every number of replicas, pipeline stages and micro-batches per rank that "
                "makes up the same micro-batches, and every parallel.zero")),
      key("run.log_every_steps", &C::run, &Run::log_every_steps, "steps between two lines of metrics.jsonl",
          one_up),
      key("run.tensorboard", &C::run, &Run::tensorboard,
          "what goes to metrics.jsonl also goes to event files for TensorBoard"),
      key("run.trace", &C::run, &Run::trace,
          "file, in the run's folder, for a trace of all ranks that Perfetto opens; empty: none", below),
      key("run.timeline", &C::run, &Run::timeline,
          "file, in the run's folder, for a page of steps as planned and as measured on each rank; empty: "
          "none",
          below),
      key("run.trace_steps", &C::run, &Run::trace_steps,
          "\"100:120\": only these steps, both included, are traced, the first three are in the timeline; "
          "empty: all, of a timeline alone 3 to 5"),
      stays(key("data.name", &C::data, &Data::name, "data set",
                {.names = names_with(data::data_names, own.datasets)})),
      key("data.path", &C::data, &Data::path,
          "folder of its files, or its URL, for text the file; empty: where Debian's package puts them"),
      key("data.workers", &C::data, &Data::workers,
          "threads per rank that read ahead; 0: one, and more while steps wait for data and more are faster",
          {.least = 0, .most = 1024}),
      key("data.prefetch", &C::data, &Data::prefetch,
          "steps read ahead; with workers = 0 more, where that spares steps a wait",
          {.least = 1, .most = 65536}),
      key("data.read_ahead_mib", &C::data, &Data::read_ahead_mib,
          "memory of a rank's batches read ahead, beyond which prefetch does not grow by itself", one_up),
      stays(key(
          "data.drop_last", &C::data, &Data::drop_last,
          "the last batch of an epoch is left out where it is not full; its samples come in other epochs")),
      stays(key("data.open_shards", &C::data, &Data::open_shards,
                "of data in shards: so many are read at a time, and samples shuffled among them; 0: all",
                zero_up)),
      stays(key(
          "data.balance", &C::data, &Data::balance,
          "how a global batch is dealt to ranks and micro-batches: the same number of samples each; of those "
          "that differ, such as texts, so that all cost alike; or to each rank as many as it is fast",
          {.names =
               [] {
                 return std::vector<std::string>{"count", "cost", "dynamic"};
               }})),
      stays(
          key("data.block", &C::data, &Data::block, "text: characters, or packed tokens, per sample", count)),
      stays(key("data.image_size", &C::data, &Data::image_size,
                "image_folder, also packed: height and width to which images are brought", count)),
      key("data.most_pixels", &C::data, &Data::most_pixels,
          "height times width that an image may have; a larger one is not decoded", one_up),
      key("data.retries", &C::data, &Data::retries,
          "of a read that failed for a reason that may pass, with pauses from 0.1 s on that double",
          {.least = 0, .most = 30}),
      stays(key("data.undecodable", &C::data, &Data::undecodable,
                "a sample that cannot be read or decoded ends the run, or the next one stands in for it",
                {.names =
                     [] {
                       return std::vector<std::string>{"error", "skip"};
                     }})),
      stays(key("data.augment", &C::data, &Data::augment,
                "images: changes to each training image, in this order",
                {.names = data::augmentation_names})),
      stays(key("data.crop_padding", &C::data, &Data::crop_padding,
                "augmentation crop: black pixels around the image, of which a part of its size is taken",
                zero_up)),
      key("data.test_path", &C::data, &Data::test_path,
          "csv, numpy, webdataset: the second split, as data.path is the first; empty: as the folder says, "
          "or "
          "every tenth sample"),
      stays(
          key("data.inputs", &C::data, &Data::inputs,
              "csv, numpy, webdataset: columns, arrays or members that go into the model; empty: csv all but "
              "the targets, numpy x, webdataset images or all but the targets")),
      stays(
          key("data.targets", &C::data, &Data::targets,
              "the same for what is learnt; empty: csv the last column, numpy y, webdataset cls, if there is "
              "one")),
      stays(key("data.target", &C::data, &Data::target,
                "whether a target is a class or a number; auto: of csv and numpy as the objective takes it, "
                "of other data as they say",
                {.names =
                     [] {
                       return std::vector<std::string>{"auto", "class", "number"};
                     }})),
      key("data.num_classes", &C::data, &Data::num_classes,
          "number of classes; 0: that of the labels, in which no class from 0 on may be missing", zero_up),
      stays(key("data.header", &C::data, &Data::header,
                "csv: whether the first line holds the names of columns; auto: yes where no cell of it is a "
                "number, no where all are",
                {.names =
                     [] {
                       return std::vector<std::string>{"auto", "yes", "no"};
                     }})),
      stays(key("data.separator", &C::data, &Data::separator, "csv: the character between two cells")),
      key("data.cache", &C::data, &Data::cache,
          "folder for what is kept from run to run: blocks of URLs, indexes of shards; empty: nothing is"),
      key("data.cache_mib", &C::data, &Data::cache_mib, "MiB of blocks in data.cache at most",
          {.least = 16, .most = kMaxInt}),
      key("data.cache_memory_mib", &C::data, &Data::cache_memory_mib,
          "MiB of those blocks, the ones used last, that each rank keeps in memory as well",
          {.least = 0, .most = kMaxInt}),
      key("data.cache_samples_mib", &C::data, &Data::cache_samples_mib,
          "images: MiB of them that each rank keeps in memory as they are before augmentations, so that they "
          "are decoded once; 0: none",
          {.least = 0, .most = kMaxInt}),
      key("data.private_redirects", &C::data, &Data::private_redirects,
          "URLs may redirect to loopback, link-local and private addresses; a source there needs no leave"),
      stays(key("model.name", &C::model, &Model::name, "model",
                {.names = names_with(model::model_names, own.models)})),
      stays(key("model.hidden", &C::model, &Model::hidden, "mlp: widths of the hidden layers", count)),
      stays(key("model.layers", &C::model, &Model::layers, "gpt: blocks", one_up)),
      stays(key("model.heads", &C::model, &Model::heads, "gpt: attention heads per block", one_up)),
      stays(key("model.width", &C::model, &Model::width,
                "gpt: numbers per token between blocks; a multiple of the heads", one_up)),
      key("model.weights", &C::model, &Model::weights,
          "file of the first weights (safetensors, an index of several, or Python's torch.save of a dict); "
          "empty: from run.seed"),
      stays(key("objective.name", &C::objective, &Objective::name, "what is learnt: the loss",
                {.names = names_with(objective::objective_names, own.objectives)})),
      key("objective.metrics", &C::objective, &Objective::metrics,
          "what evaluations measure besides the loss; empty: the one that the objective names",
          {.names = names_with(objective::metric_names, own.metrics)}),
      key("objective.top_k", &C::objective, &Objective::top_k,
          "metric top_k: right when among so many guesses", one_up),
      key("objective.label_smoothing", &C::objective, &Objective::label_smoothing,
          "cross_entropy: share of each target that is spread over all classes", fraction),
      key("objective.ignored_classes", &C::objective, &Objective::ignored_classes,
          "cross_entropy: targets that do not count (padding); they may lie outside the classes"),
      key("objective.class_weights", &C::objective, &Objective::class_weights,
          "cross_entropy: how much a target of each class counts; empty: all alike", zero_up),
      key("objective.positive_weight", &C::objective, &Objective::positive_weight,
          "binary_cross_entropy: how much a target of 1 counts, beside one of 0", {.above = 0}),
      key("train.epochs", &C::train, &Train::epochs, "passes over the training data", count),
      key("train.max_steps", &C::train, &Train::max_steps,
          "ends the run earlier, after so many steps; 0: does not", zero_up),
      stays(key("train.global_batch", &C::train, &Train::global_batch,
                "samples per step, of all ranks together", one_up)),
      stays(key("train.batch_ramp_sizes", &C::train, &Train::batch_ramp_sizes,
                "a batch that grows: its sizes before train.global_batch, rising", one_up)),
      stays(key("train.batch_ramp_steps", &C::train, &Train::batch_ramp_steps,
                "for each of those sizes the number of steps of the run behind which the next one begins, "
                "rising",
                one_up)),
      key("train.accumulation", &C::train, &Train::accumulation, "micro-batches per rank and step", count),
      stays(key("train.precision", &C::train, &Train::precision, "number format of the forward pass",
                {.names = precision_names})),
      key("train.device", &C::comm, &Comm::device,
          "where ranks compute: auto (a GPU where one can be used, else the CPU), cpu, cuda, or the name "
          "that "
          "libtorch has been given for another maker's device"),
      by_name(key("train.clip_norm", &C::train, &Train::clip_norm,
                  "largest 2-norm of all gradients together; 0: no clipping, as in asynchronous pipelines "
                  "where the key is not given",
                  zero_up),
              0.0),
      stays(key(
          "train.convolution", &C::train, &Train::convolution,
          "kernels of f32 convolutions on the CPU: what is faster on rank 0's machine, ATen's own choice, "
          "oneDNN's, or one matrix product over the batch",
          {.names = convolution_names})),
      stays(key(
          "train.memory_format", &C::train, &Train::memory_format,
          "how images and what is made of them lie in memory on the CPU: as is faster with the kernels of "
          "train.convolution, contiguous, or channels_last",
          {.names = memory_format_names})),
      key("train.non_finite", &C::train, &Train::non_finite,
          "gradients that are no numbers: stop the run, or skip the step; fp16 always skips",
          {.names =
               [] {
                 return std::vector<std::string>{"stop", "skip"};
               }}),
      key("train.max_skipped_steps", &C::train, &Train::max_skipped_steps,
          "so many steps skipped in a row end the run as diverged", one_up),
      key("train.recompute_layers", &C::train, &Train::recompute_layers,
          "layers that keep only their inputs for the backward and compute the rest again: names, in which a "
          "* stands for any text; [\"*\"]: all"),
      key("train.activation_budget", &C::train, &Train::activation_budget,
          "most bytes of activations on a rank, such as \"512MiB\": layers are recomputed so that least time "
          "is added; empty: no such bound"),
      key("train.noise_scale_every_steps", &C::train, &Train::noise_scale_every_steps,
          "steps between measurements of the gradient noise scale, which tells the largest useful batch; 0: "
          "none",
          zero_up),
      key("train.ema_decay", &C::train, &Train::ema_decay,
          "evaluations use a moving average of the parameters that remembers 1 / (1 - decay) steps; 0: none",
          fraction),
      key("scaler.initial", &C::scaler, &Scaler::initial, "fp16: loss scale of the first step", {.above = 0}),
      key("scaler.factor", &C::scaler, &Scaler::factor, "fp16: by which the scale grows and falls",
          {.above = 1}),
      key("scaler.interval", &C::scaler, &Scaler::interval,
          "fp16: good steps in a row after which the scale grows", one_up),
      key("scaler.least", &C::scaler, &Scaler::least, "fp16: smallest scale; overflow at it ends the run",
          {.above = 0}),
      key("scaler.most", &C::scaler, &Scaler::most, "fp16: largest scale", {.above = 0}),
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
          "false: biases and norms (at most one dim) are not decayed, and have trust ratio 1 in lars and "
          "lamb"),
      of_optimizer("optimizer.momentum", &Opt::momentum,
                   "how much of the last update goes on; not given: sgd, rmsprop 0, lars 0.9, muon 0.95",
                   fraction),
      of_optimizer("optimizer.nesterov", &Opt::nesterov,
                   "Nesterov's momentum; not given: sgd false, muon true"),
      key("optimizer.beta1", &C::optimizer, &Opt::beta1,
          "adamw, adam, lion, lamb, the rest of muon: decay of the first moment", fraction),
      of_optimizer(
          "optimizer.beta2", &Opt::beta2,
          "adamw, adam, lamb, the rest of muon: decay of the second moment, not given 0.999; lion: of "
          "the first, after the update, not given 0.99",
          fraction),
      key("optimizer.alpha", &C::optimizer, &Opt::alpha, "rmsprop: decay of the mean square", fraction),
      key("optimizer.centered", &C::optimizer, &Opt::centered,
          "rmsprop: divides by the standard deviation of the gradient"),
      of_optimizer(
          "optimizer.eps", &Opt::eps,
          "added to the denominator; not given: adamw, adam, rmsprop, the rest of muon 1e-8, adagrad "
          "1e-10, lamb 1e-6",
          {.above = 0}),
      key("optimizer.trust_coefficient", &C::optimizer, &Opt::trust_coefficient,
          "lars: share of its own norm by which a tensor moves at a rate of 1", {.above = 0}),
      by_name(key("optimizer.muon_scale", &C::optimizer, &Opt::muon_scale,
                  "muon: updates as PyTorch scales them by default, or as large as adamw's, so that its rate "
                  "and decay fit",
                  {.names = optim::muon_scale_names})),
      stays(key(
          "optimizer.muon_spares", &C::optimizer, &Opt::muon_spares,
          "muon: tensors with one of these in their names are the rest, which adamw updates, as all with at "
          "most one dim are")),
      key("optimizer.muon_adamw_rate", &C::optimizer, &Opt::muon_adamw_rate,
          "muon: learning rate of the rest, as a multiple of optimizer.lr", zero_up),
      key("lr.schedule", &C::learning_rate, &Lr::schedule, "how the learning rate changes",
          {.names = optim::learning_rate_names}),
      key("lr.warmup_steps", &C::learning_rate, &Lr::warmup_steps,
          "steps over which the rate grows from 0 (one_cycle: from lr.initial_fraction)", zero_up),
      key("lr.initial_fraction", &C::learning_rate, &Lr::initial_fraction,
          "one_cycle: the warm-up begins at this fraction of optimizer.lr", share),
      key("lr.final_fraction", &C::learning_rate, &Lr::final_fraction,
          "cosine, polynomial, wsd, one_cycle: end at this fraction of optimizer.lr; reduce_on_plateau: the "
          "least",
          share),
      key("lr.factor", &C::learning_rate, &Lr::factor,
          "step, multi_step, exponential, reduce_on_plateau: what the rate is multiplied with",
          {.below = 1, .above = 0}),
      key("lr.period_steps", &C::learning_rate, &Lr::period_steps,
          "step: steps between two falls by lr.factor; exponential: steps over which it falls by that",
          zero_up),
      key("lr.milestones", &C::learning_rate, &Lr::milestones,
          "multi_step: steps of the run at which the rate falls by lr.factor", one_up),
      key("lr.power", &C::learning_rate, &Lr::power, "polynomial: its power; 1: linear", {.above = 0}),
      key("lr.decay_steps", &C::learning_rate, &Lr::decay_steps,
          "wsd: steps at the end of the run over which the rate falls", zero_up),
      key("lr.patience", &C::learning_rate, &Lr::patience,
          "reduce_on_plateau: evaluations in a row without progress that are borne", zero_up),
      key("lr.threshold", &C::learning_rate, &Lr::threshold,
          "reduce_on_plateau: progress is to fall by more than this share of the best", fraction),
      key("lr.cooldown", &C::learning_rate, &Lr::cooldown,
          "reduce_on_plateau: evaluations after a fall that do not count", zero_up),
      key("lr.scale_with_batch", &C::learning_rate, &Lr::scale_with_batch,
          "how optimizer.lr grows with train.global_batch / lr.reference_batch",
          {.names = optim::batch_scaling_names}),
      key("lr.reference_batch", &C::learning_rate, &Lr::reference_batch,
          "samples per step for which optimizer.lr was chosen", zero_up),
      key("eval.every_steps", &C::eval, &EvalOptions::every_steps,
          "steps between evaluations; 0: after every epoch. The end of the run is always evaluated", zero_up),
      key("eval.patience", &C::eval, &EvalOptions::patience,
          "evaluations in a row that are no better than the best before them, behind which the run ends; 0: "
          "it goes on",
          zero_up),
      stays(key("eval.patience_metric", &C::eval, &EvalOptions::patience_metric,
                "what evaluations are to be better in: \"loss\", or a metric that is measured")),
      key("checkpoint.every_steps", &C::checkpoint, &CheckpointOptions::every_steps,
          "steps between checkpoints; 0: none", zero_up),
      key("checkpoint.keep", &C::checkpoint, &CheckpointOptions::keep, "newest checkpoints that stay", count),
      stays(key(
          "checkpoint.best", &C::checkpoint, &CheckpointOptions::best,
          "the state behind the best evaluation is kept too: by \"loss\", or by a metric that is measured")),
      key("checkpoint.asynchronous", &C::checkpoint, &CheckpointOptions::asynchronous,
          "checkpoints are written while training goes on; false: it waits for the disk"),
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
