#include "trireme/train/internal/config_keys.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/data/transform.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/train/convolutions.h"
#include "trireme/train/registry.h"

namespace trireme::train {
namespace {

/// A row for `config.*table.*field`.
template <class Table, class Field>
ConfigKey key(std::string name, Table RunConfig::*table, Field Table::*field, std::string meaning,
              Allowed allowed = {}) {
  return {.name = std::move(name),
          .meaning = std::move(meaning),
          .allowed = std::move(allowed),
          .get = [=](const RunConfig& config) { return ConfigValue(HeldAs<Field>(config.*table.*field)); },
          .set =
              [=](RunConfig& config, const ConfigValue& value) {
                config.*table.*field = static_cast<Field>(std::get<HeldAs<Field>>(value));
              }};
}

/// The same row for a key that a resumed run has to keep.
ConfigKey stays(ConfigKey row) {
  row.on_resume = OnResume::kStays;
  return row;
}

/// The same for one that helps to decide when stages update.
ConfigKey updates_stay(ConfigKey row) {
  row.on_resume = OnResume::kUpdatesStay;
  return row;
}

/// The same for one that a resume changes only where somebody asks for it.
ConfigKey by_name(ConfigKey row, const ConfigValue& before_it_was) {
  row.on_resume = OnResume::kMayChangeByName;
  row.before_it_was = before_it_was;
  return row;
}

std::vector<std::string> backend_choices() {
  std::vector<std::string> names = {"auto"};
  for (const comm::BackendInfo& info : comm::backend_infos()) names.push_back(info.name);
  return names;
}

/// What a table of a module knows, and what a program brings.
std::function<std::vector<std::string>()> names_with(std::vector<std::string> (*shipped)(),
                                                     const std::vector<std::string>& own) {
  return [=] {
    std::vector<std::string> names = shipped();
    names.insert(names.end(), own.begin(), own.end());
    return names;
  };
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
  using Offload = optim::OffloadOptions;
  using Served = parallel::ServedOptions;
  const Allowed one_up{.least = 1}, zero_up{.least = 0}, fraction{.least = 0, .below = 1},
      share{.least = 0, .most = 1};
  const Allowed count{.least = 1, .most = kMaxInt};
  return {
      key("run.name", &C::run, &Run::name, "name of the run and of its folder",
          {.single_path_component = true}),
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
          "file, in the run's folder, for a trace of all ranks that Perfetto opens; empty: none"),
      key("run.timeline", &C::run, &Run::timeline,
          "file, in the run's folder, for a page of steps as planned and as measured on each rank; empty: "
          "none"),
      key("run.trace_steps", &C::run, &Run::trace_steps,
          "\"100:120\": only these steps, both included, are traced, the first three are in the timeline; "
          "empty: all, of a timeline alone 3 to 5"),
      stays(key("data.name", &C::data, &Data::name, "data set",
                {.names = names_with(data::data_names, own.datasets)})),
      key("data.path", &C::data, &Data::path,
          "folder of its files, for text the file; empty: where Debian's package puts them"),
      key("data.workers", &C::data, &Data::workers,
          "threads per rank that read ahead; 0: one, and more while steps wait for data and more are faster",
          {.least = 0, .most = 1024}),
      key("data.prefetch", &C::data, &Data::prefetch,
          "steps read ahead; with workers = 0 more, where that spares steps a wait",
          {.least = 1, .most = 65536}),
      key("data.read_ahead_mib", &C::data, &Data::read_ahead_mib,
          "memory of a rank's batches read ahead, beyond which prefetch does not grow by itself", one_up),
      stays(key("data.open_shards", &C::data, &Data::open_shards,
                "of data in shards: so many are read at a time, and samples shuffled among them; 0: all",
                zero_up)),
      stays(key(
          "data.balance", &C::data, &Data::balance,
          "how a global batch is dealt to ranks and micro-batches: the same number of samples each, or of "
          "those that differ, such as texts, so many that all cost alike",
          {.names =
               [] {
                 return std::vector<std::string>{"count", "cost"};
               }})),
      stays(
          key("data.block", &C::data, &Data::block, "text: characters, or packed tokens, per sample", count)),
      stays(key("data.image_size", &C::data, &Data::image_size,
                "image_folder, also packed: height and width to which images are brought", count)),
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
      key("data.cache", &C::data, &Data::cache,
          "folder for what is kept from run to run: blocks of URLs, indexes of shards; empty: nothing is"),
      key("data.cache_mib", &C::data, &Data::cache_mib, "MiB of blocks in data.cache at most",
          {.least = 16, .most = kMaxInt}),
      stays(key("model.name", &C::model, &Model::name, "model",
                {.names = names_with(model::model_names, own.models)})),
      stays(key("model.hidden", &C::model, &Model::hidden, "mlp: widths of the hidden layers", count)),
      stays(key("model.layers", &C::model, &Model::layers, "gpt: blocks", one_up)),
      stays(key("model.heads", &C::model, &Model::heads, "gpt: attention heads per block", one_up)),
      stays(key("model.width", &C::model, &Model::width,
                "gpt: numbers per token between blocks; a multiple of the heads", one_up)),
      key("model.weights", &C::model, &Model::weights,
          "file of the first weights (safetensors, or Python's torch.save of a dict); empty: from run.seed"),
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
      key("optimizer.lr", &C::optimizer, &Opt::lr, "learning rate before the schedule", {.above = 0}),
      key("optimizer.weight_decay", &C::optimizer, &Opt::weight_decay,
          "sgd, adam, adagrad, rmsprop, lars: L2; adamw, lion, muon: decoupled; lamb: within the trust ratio",
          zero_up),
      key("optimizer.decay_1d", &C::optimizer, &Opt::decay_1d,
          "false: biases and norms (at most one dim) are not decayed, and have trust ratio 1 in lars and "
          "lamb"),
      key("optimizer.momentum", &C::optimizer, &Opt::momentum,
          "sgd, lars, rmsprop, muon (0.95): how much of the last update goes on", fraction),
      key("optimizer.nesterov", &C::optimizer, &Opt::nesterov, "sgd, muon: Nesterov's momentum"),
      key("optimizer.beta1", &C::optimizer, &Opt::beta1,
          "adamw, adam, lion, lamb, the rest of muon: decay of the first moment", fraction),
      key("optimizer.beta2", &C::optimizer, &Opt::beta2,
          "adamw, adam, lamb, the rest of muon: decay of the second moment; lion: of the first, behind the "
          "update (its paper: "
          "0.99)",
          fraction),
      key("optimizer.alpha", &C::optimizer, &Opt::alpha, "rmsprop: decay of the mean square", fraction),
      key("optimizer.centered", &C::optimizer, &Opt::centered,
          "rmsprop: divides by the standard deviation of the gradient"),
      key("optimizer.eps", &C::optimizer, &Opt::eps,
          "adamw, adam, adagrad, rmsprop, lamb, the rest of muon: added to the denominator", {.above = 0}),
      key("optimizer.trust_coefficient", &C::optimizer, &Opt::trust_coefficient,
          "lars: share of its own norm by which a tensor moves at a rate of 1", {.above = 0}),
      key("optimizer.muon_scale", &C::optimizer, &Opt::muon_scale,
          "muon: updates as large as adamw's, so that its rate and decay fit, or as PyTorch scales them by "
          "default",
          {.names = optim::muon_scale_names}),
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
      key("checkpoint.every_steps", &C::checkpoint, &CheckpointOptions::every_steps,
          "steps between checkpoints; 0: none", zero_up),
      key("checkpoint.keep", &C::checkpoint, &CheckpointOptions::keep, "newest checkpoints that stay", count),
      stays(key(
          "checkpoint.best", &C::checkpoint, &CheckpointOptions::best,
          "the state behind the best evaluation is kept too: by \"loss\", or by a metric that is measured")),
      key("checkpoint.asynchronous", &C::checkpoint, &CheckpointOptions::asynchronous,
          "checkpoints are written while training goes on; false: it waits for the disk"),
      key("parallel.mode", &C::parallel, &ParallelOptions::mode,
          "who adds gradients up and updates: each rank, or servers", {.names = mode_names}),
      key("parallel.data", &C::parallel, &ParallelOptions::data,
          "replicas of the model; 0: as many as there are ranks for", {.least = 0, .most = kMaxInt}),
      updates_stay(key("parallel.pipeline", &C::parallel, &ParallelOptions::pipeline,
                       "ranks over which the layers of each replica are cut", count)),
      key("parallel.tensor", &C::parallel, &ParallelOptions::tensor,
          "ranks over which each layer is cut: heads, features and vocabulary; for gpt, mlp, and models that "
          "have a tensor-parallel form",
          count),
      key("parallel.sequence", &C::parallel, &ParallelOptions::sequence,
          "parallel.tensor: between layers each rank has a part of each sequence; gpt"),
      key("parallel.context", &C::parallel, &ParallelOptions::context,
          "ranks over which each sequence is cut, with attention in a ring; for gpt, and models whose form "
          "can",
          count),
      updates_stay(
          key("parallel.schedule", &C::parallel, &ParallelOptions::schedule,
              "order of work in a pipeline: a name that `trireme schedule` knows, or a file NAME.csv")),
      key("parallel.chunks", &C::parallel, &ParallelOptions::chunks,
          "stages per rank, for schedules that can have several; 0: the schedule's own number; without a "
          "pipeline, stages into which each rank's model is cut",
          {.least = 0, .most = kMaxInt}),
      key("parallel.microbatches", &C::parallel, &ParallelOptions::microbatches,
          "micro-batches of a pipeline, train.accumulation times per step; 0: four times its ranks, or what "
          "an "
          "asynchronous schedule needs",
          {.least = 0, .most = kMaxInt}),
      key("parallel.partition", &C::parallel, &ParallelOptions::partition,
          "where layers are cut: stages alike in time, in parameters, or in layers",
          {.names = partition_names}),
      key("parallel.cuts", &C::parallel, &ParallelOptions::cuts,
          "first layer of each stage of a pipeline but the first, in the place of parallel.partition: [5, 9]",
          one_up),
      key("parallel.planned_step_s", &C::parallel, &ParallelOptions::planned_step_s,
          "seconds that a step takes by trireme plan, told beside what it took; 0: there is no plan",
          {.least = 0}),
      key("parallel.vertical_sync", &C::parallel, &ParallelOptions::vertical_sync,
          "pipedream: a micro-batch sees the same version of the weights on all stages"),
      key("parallel.recompute", &C::parallel, &ParallelOptions::recompute,
          "a pipeline keeps the inputs of its stages and computes the rest again: less memory, more time"),
      key("parallel.zero", &C::parallel, &ParallelOptions::zero,
          "what replicas share out instead of each holding all: 1 the optimizer's state, 2 and gradients, 3 "
          "and parameters; 0: nothing",
          {.least = 0, .most = 3}),
      key("parallel.working_copy", &C::parallel, &ParallelOptions::working_copy,
          "parallel.zero with bf16 or fp16: ranks compute with a copy of the weights in that format, and the "
          "f32 "
          "values lie in shards alone"),
      key("parallel.persistent_below", &C::parallel, &ParallelOptions::persistent_below,
          "parallel.zero = 3: parameters with fewer elements stay gathered between uses", zero_up),
      key("parallel.gathered_layers", &C::parallel, &ParallelOptions::gathered_layers,
          "parallel.zero = 3: layers, or stages, whose weights are gathered at a time, ahead of their use; "
          "0: each "
          "once per step, and there until its last use",
          {.least = 0, .most = kMaxInt}),
      key("parallel.keep_gradients", &C::parallel, &ParallelOptions::keep_gradients,
          "parallel.zero = 2, 3 with several micro-batches: their gradients add up whole on each rank and "
          "are "
          "reduced once per step"),
      key("parallel.shard_ranks", &C::parallel, &ParallelOptions::shard_ranks,
          "parallel.zero: replicas next to each other in groups of so many, each of which has all of the "
          "state; "
          "0: one group",
          {.least = 0, .most = kMaxInt}),
      key("parallel.bucket_mib", &C::parallel, &ParallelOptions::bucket_mib,
          "MiB of gradients that are reduced in one piece", {.most = 4096, .above = 0}),
      key("parallel.compression", &C::parallel, &ParallelOptions::compression,
          "how gradients travel: in a number format, or compressed", {.names = parallel::comm_hook_names}),
      key("parallel.compression_fraction", &C::parallel, &ParallelOptions::compression_fraction,
          "parallel.compression = \"top-k\", \"random-k\", \"dgc\": the share of each gradient that is sent",
          {.most = 0.5, .above = 0}),
      key("parallel.compression_warmup_steps", &C::parallel, &ParallelOptions::compression_warmup_steps,
          "the same: first steps, in which 1/4, 1/16, 1/64 and 1/256 of each gradient are sent",
          {.least = 0, .most = kMaxInt}),
      key("parallel.compression_rank", &C::parallel, &ParallelOptions::compression_rank,
          "parallel.compression = \"power-sgd\": columns of the factors", {.least = 1, .most = 1024}),
      key("parallel.unused_parameters", &C::parallel, &ParallelOptions::unused_parameters,
          "parameters that a step does not reach: an error, found in every step, or in the first one",
          {.names = parallel::unused_parameters_names}),
      key("ps.coordinator", &C::served, &Served::coordinator,
          "parallel.mode = \"ps\": address of the coordinator; empty: the one of --servers"),
      key("ps.staleness", &C::served, &Served::staleness,
          "parallel.mode = \"ps\": steps that ranks may be apart; 0: they go together, as with all-reduce; "
          "-1: "
          "no bound",
          {.least = -1, .most = 1000}),
      key("offload.optimizer", &C::offload, &Offload::optimizer,
          "where the optimizer's state lives: in memory, or in files that are read and written part by part",
          {.names = optim::offload_place_names}),
      key("offload.parameters", &C::offload, &Offload::parameters,
          "parallel.zero = 3: where each rank's shards of the parameters live",
          {.names = optim::offload_place_names}),
      key("offload.folder", &C::offload, &Offload::folder,
          "folder of these files, best on a fast local disk; empty: the run's"),
      key("offload.part_mib", &C::offload, &Offload::part_mib,
          "MiB that are brought to memory at once, of which there are three; a larger tensor where it has to "
          "be "
          "brought whole",
          {.most = 65536, .above = 0}),
      key("comm.backend", &C::comm, &Comm::backend, "how ranks talk; auto: the fastest that works here",
          {.names = backend_choices}),
      key("comm.timeout_s", &C::comm, &Comm::timeout_s,
          "seconds after which a rank that others wait for and that is gone, stuck or elsewhere ends the run",
          {.most = 86400, .above = 0}),
      key("comm.slow_timeout_s", &C::comm, &Comm::slow_timeout_s,
          "the same for a rank that is alive and gets on; comm.timeout_s where that is more",
          {.most = 604800, .above = 0}),
      key("comm.torch_threads", &C::comm, &Comm::torch_threads,
          "threads of one rank; 0: cores / ranks of the host", {.least = 0, .most = 4096}),
  };
}

const std::vector<ConfigKey>& config_key_table(const RunConfig& config) {
  static const std::vector<ConfigKey> kShipped = make_config_key_table();
  return config.registry ? config.registry->keys() : kShipped;
}

bool is_named(const RunConfig& config, const ConfigKey& key) {
  if (config.named) return config.named->contains(key.name);
  return to_toml(key.get(config)) != to_toml(key.get({}));
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
