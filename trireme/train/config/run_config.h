#pragma once
// A RunConfig holds all settings of a training run: the sum of the modules' option structs, each of which
// stays with its module. It is read from a TOML file, and `--set table.key=value` overrides it. Both are
// strict: an unknown table or key, a wrong type or a value out of range is an error that names the place.
// Keys, types, defaults and bounds are in one table (config_keys.cpp); docs/configuration.md is checked
// against it. A value; functions here are thread-safe.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/model/model.h"
#include "trireme/objective/objective.h"
#include "trireme/optim/learning_rate.h"
#include "trireme/optim/loss_scaler.h"
#include "trireme/optim/offload_options.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/served/served_options.h"
#include "trireme/train/config/config_value.h"

namespace trireme::train {

struct RunOptions {
  std::string name = "run";     ///< the run's folder is `folder`/`name`
  std::string folder = "runs";  ///< created when missing
  std::int64_t seed = 0;        ///< of the initial weights and the order of samples
  bool exact = false;  ///< bits do not depend on the ranks of micro-batches, layers and optimizer state
  std::int64_t log_every_steps = 10;  ///< one line of metrics.jsonl every so many steps
  bool tensorboard = false;           ///< event files for TensorBoard next to metrics.jsonl
  std::string trace = "";             ///< file of the trace, in the run's folder; empty: none
  std::string timeline = "";          ///< file of planned and measured steps, in the run's folder
  std::string trace_steps = "";       ///< "100:120": only those are traced; empty: all
};

/// The table [train] of a configuration.
struct TrainOptions {
  std::int64_t epochs = 1;
  std::int64_t max_steps = 0;      ///< stop after so many steps even if epochs are left; 0: no such limit
  std::int64_t global_batch = 64;  ///< samples of all ranks and micro-batches in one step
  /// Smaller batches of the first steps, rising, and the steps until which they hold; empty: none.
  std::vector<std::int64_t> batch_ramp_sizes = {}, batch_ramp_steps = {};
  std::string batch_ramp_by = "steps";  ///< when the next size begins: a name of batch_ramp_names()
  std::int64_t accumulation = 1;        ///< micro-batches per rank and step
  std::string precision = "fp32";       ///< a name of precision_names()
  double clip_norm = 1;  ///< largest 2-norm of all gradients together; 0: no clipping. The default is 0 where
                         ///< stages update at different times
  std::string convolution = "auto";     ///< a name of convolution_names()
  std::string memory_format = "auto";   ///< a name of memory_format_names()
  std::string non_finite = "stop";      ///< gradients that are no numbers: "stop" the run, or "skip" the step
  std::int64_t max_skipped_steps = 25;  ///< so many skipped in a row are a divergence
  std::vector<std::string> recompute_layers = {};  ///< only their inputs are kept; a * matches any text
  std::string activation_budget = "";  ///< bytes of activations, for which layers are chosen; empty: none
  std::int64_t noise_scale_every_steps = 0;  ///< the gradient noise scale is measured; 0: it is not
  std::string graph = "off";  ///< layers are captured in graphs of the device: a name of graph_use_names()
  bool adapt = false;         ///< one controller keeps changes that shorten steps (parts/adaptation.h)
  double ema_decay = 0;       ///< evaluate a moving average of the parameters; 0: the parameters
};

struct EvalOptions {
  std::int64_t every_steps = 0;  ///< besides the one at the end; 0: at the end of every epoch
  std::int64_t patience = 0;  ///< in a row that are no better than the best before them end the run; 0: never
  std::string patience_metric = "loss";  ///< "loss" or a metric: it has to improve
};

struct CheckpointOptions {
  std::int64_t every_steps = 0;    ///< 0: none
  std::int64_t keep = 2;           ///< older ones are removed
  std::string best = "none";       ///< "loss" or a metric: the checkpoint in best/ has its best value
  bool asynchronous = true;        ///< written while training continues; false: training waits for the disk
  std::string interval = "steps";  ///< a name of checkpoint_interval_names(); run/save_interval.h
  double mean_time_between_failures_s = 0;  ///< interval "auto"; 0: estimated
  std::int64_t in_memory_every_steps = 0;   ///< copies on two ranks each, for an elastic job; 0: none
};

struct ParallelOptions {
  std::string mode = "all-reduce";      ///< how gradients are summed and parameters updated: a name of
                                        ///< mode_names()
  std::int64_t data = 0;                ///< replicas; 0: as many as there are ranks for
  std::int64_t pipeline = 1;            ///< ranks that a replica's layers are cut over
  std::int64_t tensor = 1;              ///< ranks that each layer is cut over
  bool sequence = false;                ///< tensor: sequences are cut between layers, too
  std::int64_t context = 1;             ///< ranks that each sequence is cut over
  std::int64_t expert = 1;              ///< replicas over which a layer's experts are split
  std::string schedule = "1f1b";        ///< a name of schedule::schedule_names(), or a file *.csv
  std::int64_t chunks = 0;              ///< stages per rank; 0: the schedule's default
  std::int64_t microbatches = 0;        ///< of a pipeline; 0: four times its ranks
  std::string partition = "auto";       ///< where the layers are cut: a name of partition_names()
  std::vector<std::int64_t> cuts = {};  ///< first layer of each stage but the first; empty: partition
  double planned_step_s = 0;            ///< prediction of the plan in seconds; 0: none
  std::string plan = "none";            ///< method that decides the keys of planner/planned_keys.h: of
                                        ///< plan_names()
  bool vertical_sync = false;           ///< pipedream: one version of the weights per micro-batch
  bool recompute = false;               ///< activations are recomputed for the backward
  std::int64_t zero = 0;                ///< state that is sharded over replicas: parallel::ZeroStage
  bool working_copy = true;             ///< zero: weights are gathered rounded to train.precision
  std::int64_t persistent_below = 0;    ///< zero = 3: smaller parameters stay gathered
  std::int64_t gathered_layers = 2;     ///< zero = 3: layers whose weights are there at a time; 0: all
  bool keep_gradients = false;          ///< zero = 2, 3: micro-batches' add up whole, and are reduced once
  std::int64_t shard_ranks = 0;         ///< zero: replicas in a shard group; 0: all
  double bucket_mib = 25;               ///< gradients reduced in one piece
  std::string priority = "none";        ///< which gradients go first: a name of priority_names()
  std::int64_t slice_kib = 512;         ///< priority: of gradients that go at once; 0: tuned
  std::string compression = "none";     ///< a name of parallel::comm_hook_names()
  double compression_fraction = 0.001;  ///< top-k, dgc: of each gradient that is sent
  std::int64_t compression_warmup_steps = 0;    ///< the same, one-bit: first steps
  std::int64_t compression_rank = 4;            ///< power-sgd
  std::string compression_scope = "auto";       ///< a name of parallel::compression_scope_names()
  double compression_clip_norm = 0;             ///< dgc: each rank's own gradients; 0: none
  std::string weight_compression = "none";      ///< zero: a name of parallel::shard_weight_names()
  std::string activation_compression = "none";  ///< a name of parallel::activation_format_names()
  std::int64_t local_steps = 1;  ///< of a site between outer steps; 1: gradients of all replicas in each step
  std::int64_t local_ranks = 1;  ///< replicas of a site, which average their gradients in each step
  std::int64_t local_from_step = 0;         ///< first steps, in which all replicas do
  std::int64_t local_fragments = 1;         ///< parts of the model that go to the other sites one by one
  std::int64_t local_delay = 0;             ///< steps that continue while a part travels
  double local_mixing = 0.5;                ///< local_delay: share of its own values that a site keeps then
  std::string outer_optimizer = "average";  ///< a name of outer_optimizer_names()
  double outer_lr = 0.7;                    ///< momentum, nesterov
  double outer_momentum = 0.9;              ///< the same
  std::string unused_parameters = "error";  ///< a name of parallel::unused_parameters_names()
  std::int64_t check_replicas_every = 100;  ///< steps between comparisons of the replicated state; 0: none
  /// 1f1b-rr: ranks of each stage; empty: two of the first, one of each other.
  std::vector<std::int64_t> stage_replicas = {};
};

class Registry;

struct RunConfig {
  RunOptions run;
  data::DataOptions data;
  model::ModelOptions model;
  objective::ObjectiveOptions objective;
  TrainOptions train;
  optim::OptimizerOptions optimizer;
  optim::LearningRateOptions learning_rate;
  optim::LossScalerOptions scaler;  ///< of precisions that scale the loss
  EvalOptions eval;
  CheckpointOptions checkpoint;
  ParallelOptions parallel;
  parallel::ServedOptions served;  ///< parallel.mode = "ps"
  optim::OffloadOptions offload;
  comm::ContextOptions comm;
  std::string source;  ///< file that it was read from; empty when made in code
  /// Custom parts of a program, by name (registry.h); null: none. Named keys of its tables that were set:
  /// "towers.width".
  std::shared_ptr<const Registry> registry;
  std::map<std::string, ConfigValue> own;
  std::optional<std::set<std::string>> named;  ///< keys that were read; none when made in code

  std::filesystem::path run_folder() const { return std::filesystem::path(run.folder) / run.name; }
};

/// Reads the file, then applies the overrides ("optimizer.lr=0.1") in order; the values of overrides are
/// TOML, bare words are taken as text. Throws DataError when the file cannot be read, InvalidArgument with
/// "FILE:LINE: ..." or "--set ...: ..." for everything that is wrong in it. With a registry its names and
/// tables are known.
RunConfig load_run_config(const std::filesystem::path& file, const std::vector<std::string>& overrides = {},
                          const std::shared_ptr<const Registry>& registry = nullptr);

/// The same from text; `name` is the file's name in messages.
RunConfig parse_run_config(const std::string& content, const std::string& name,
                           const std::shared_ptr<const Registry>& registry = nullptr);

/// The whole configuration as canonical TOML, every key with its value; load_run_config reads it back.
std::string describe(const RunConfig& config);

/// One row of the table of keys, for documentation and completion.
struct ConfigKeyInfo {
  std::string name;           ///< "optimizer.lr"
  std::string type;           ///< "text", "whole number", "number", "true or false", "list of whole numbers",
                              ///< "list of numbers", "list of texts"
  std::string default_value;  ///< as TOML
  std::string allowed;        ///< "at least 1"; names for a choice; empty: anything
  std::string meaning;
  OnResume on_resume;
};
/// All keys, with those of the registry. --help, docs/configuration.md and completion are checked against
/// them.
std::vector<ConfigKeyInfo> config_keys(const std::shared_ptr<const Registry>& registry = nullptr);

/// Values of train.precision.
std::vector<std::string> precision_names();

/// Values of train.batch_ramp_by.
std::vector<std::string> batch_ramp_names();

/// Values of parallel.mode.
std::vector<std::string> mode_names();

/// Values of parallel.priority.
std::vector<std::string> priority_names();

/// Values of checkpoint.interval.
std::vector<std::string> checkpoint_interval_names();

/// Values of parallel.outer_optimizer.
std::vector<std::string> outer_optimizer_names();

/// Values of parallel.plan.
std::vector<std::string> plan_names();

/// Values of parallel.partition.
std::vector<std::string> partition_names();

}  // namespace trireme::train
