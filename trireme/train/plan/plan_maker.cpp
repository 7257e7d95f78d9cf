#include "trireme/train/plan/internal/plan_maker.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <span>

#include "trireme/base/bounded_file.h"
#include "trireme/base/error.h"
#include "trireme/base/min_max_cuts.h"
#include "trireme/comm/device.h"
#include "trireme/parallel/data/comm_hook.h"
#include "trireme/schedule/schedule_table.h"
#include "trireme/train/config/batch_ramp.h"
#include "trireme/train/config/internal/config_keys.h"
#include "trireme/train/parts/internal/compression.h"
#include "trireme/train/parts/internal/exact_run.h"
#include "trireme/train/parts/internal/local_steps.h"
#include "trireme/train/parts/internal/offloading.h"
#include "trireme/train/parts/internal/priority.h"
#include "trireme/train/parts/internal/serving.h"
#include "trireme/train/parts/noise_scale.h"
#include "trireme/train/parts/recomputed_layers.h"
#include "trireme/train/plan/internal/axis_ranks.h"
#include "trireme/train/plan/internal/conflicts.h"
#include "trireme/train/plan/internal/fixes.h"
#include "trireme/train/plan/internal/sharding.h"
#include "trireme/train/report/run_trace.h"

namespace trireme::train {
namespace {

/// Runs `check`. Its errors get `place` in front, and `fixes` if they have none.
template <class Check>
void at_place(const std::string& place, const Fixes& fixes, const Check& check) {
  try {
    check();
  } catch (const PlanError& plan_error) {
    throw PlanError(place + plan_error.what(), plan_error.fixes());
  } catch (const InvalidArgument& reason) {
    throw PlanError(place + reason.what(), fixes);
  }
}

struct PartitionRow {
  const char* name;
  Partition partition;
};

constexpr std::uint64_t kMaxProgramBytes = std::uint64_t{64} << 20;

constexpr std::array kPartitions = {
    PartitionRow{"auto", Partition::kTime}, PartitionRow{"time", Partition::kTime},
    PartitionRow{"parameters", Partition::kParameters}, PartitionRow{"uniform", Partition::kLayers}};

Partition partition_of(const std::string& name) {
  const auto row = std::find_if(kPartitions.begin(), kPartitions.end(),
                                [&](const PartitionRow& each) { return name == each.name; });
  require(row != kPartitions.end(), "unknown partition '", name, "'", suggest(name, partition_names()));
  return row->partition;
}

bool replicates_stages(const RunConfig& config) {
  return config.parallel.pipeline > 1 && config.parallel.schedule == "1f1b-rr";
}

/// Ranks of each stage; empty: one rank for every stage.
std::vector<int> replicas_of_stages(const RunConfig& config) {
  const std::vector<std::int64_t>& asked = config.parallel.stage_replicas;
  if (!replicates_stages(config)) return {};
  if (asked.empty()) return schedule::default_replicas(static_cast<int>(config.parallel.pipeline));
  return {asked.begin(), asked.end()};
}

/// Synchronous schedules get 4 micro-batches per rank, so bubbles are at most a fifth (Huang et al., arXiv
/// 1811.06965, section 2.3). Asynchronous schedules have no bubbles. PipeDream-2BW needs one per rank for its
/// two versions of the weights. Others need as many as every stage can share among its replicas, or one per
/// update.
int microbatches_of_a_round(const RunConfig& config) {
  const std::int64_t asked = config.parallel.microbatches, ranks = config.parallel.pipeline;
  if (asked > 0) return static_cast<int>(asked);
  if (!updates_under_way(config)) return static_cast<int>(4 * ranks);
  if (config.parallel.schedule == "pipedream-2bw") return static_cast<int>(ranks);
  std::int64_t common = 1;
  for (const int count : replicas_of_stages(config))
    common = std::min<std::int64_t>(std::lcm(common, std::int64_t{count}), std::numeric_limits<int>::max());
  return static_cast<int>(common);
}

schedule::Program program_in_file(const RunConfig& config) {
  const std::string& file = config.parallel.schedule;
  schedule::Program program;
  at_place(text("parallel.schedule = \"", file, "\": "), {}, [&] {
    program = schedule::parse_csv(read_bounded_stream(file, kMaxProgramBytes, "schedule"));
    program.name = file;
    const std::int64_t asked = config.parallel.microbatches;
    reject_unless(asked == 0 || asked == program.num_microbatches,
                  {set(&RunConfig::parallel, &ParallelOptions::microbatches, 0)}, "it has ",
                  program.num_microbatches, " micro-batches, parallel.microbatches = ", asked,
                  "; leave that key out");
  });
  return program;
}

/// The factors of a replica's number of micro-batches.
std::string parts_in_words(const RunConfig& config, int num_microbatches) {
  std::string rounds = text("train.accumulation = ", config.train.accumulation);
  if (config.parallel.pipeline == 1) return rounds;
  return text("parallel.microbatches = ", num_microbatches / config.train.accumulation, " x ", rounds);
}

}  // namespace

std::vector<std::string> partition_names() {
  std::vector<std::string> names;
  for (const PartitionRow& row : kPartitions) names.emplace_back(row.name);
  return names;
}

/// Makes a plan in the order in which its parts depend on each other. Throws PlanError where a fix may be
/// known.
class PlanMaker {
 public:
  static ParallelPlan make(const RunConfig& config, int world_size, const std::optional<ModelShape>& model,
                           MadeSchedules* schedules) {
    PlanMaker maker(config, world_size);
    maker.read_names();
    maker.lay_out_ranks();
    maker.choose_order(model);
    maker.choose_clipping();
    maker.check_batch();
    check_conflicts(maker.plan_);
    maker.make_program(schedules);
    maker.check_records();
    maker.check_update();
    comm::check_gpu_options(config.comm.cuda, config.comm.nccl);
    maker.check_shards();
    maker.make_exact();
    check_recomputation(config);
    check_offloading(maker.plan_);
    check_compression(maker.plan_);
    check_serving(maker.plan_);
    check_priority(maker.plan_);
    check_local_steps(maker.plan_);
    check_noise_scale(maker.plan_);
    if (model) maker.plan_.cut(*model);
    return std::move(maker.plan_);
  }

 private:
  PlanMaker(const RunConfig& config, int world_size) {
    plan_.config_ = config;
    plan_.world_size_ = world_size;
  }
  const RunConfig& config() const { return plan_.config_; }
  bool is_pipeline() const { return config().parallel.pipeline > 1; }

  /// A configuration from C++ can hold any value.
  void read_names() {
    for (const auto& [name, value] : config().own)
      check_type(find_key(config_key_table(config()), name), value);
    for (const ConfigKey& key : config_key_table(config())) check_allowed(key, key.get(config()));
    plan_.config_.optimizer = optim::with_defaults(config().optimizer);
    plan_.partition_ = partition_of(config().parallel.partition);
    // Stages of one rank do not wait for the slowest one, so their parameters count instead of their times.
    if (!is_pipeline() && plan_.partition_ == Partition::kTime) plan_.partition_ = Partition::kParameters;
    at_place("train.", {set(&RunConfig::comm, &comm::ContextOptions::device, "auto")},
             [&] { plan_.device_ = comm::device_type_of(config().comm.device); });
    plan_.precision_ = precision_of(config().train.precision);
    plan_.convolutions_ = convolution_rule(config().train.convolution, config().train.memory_format);
    if (plan_.device_ != c10::kCPU) leave_convolutions_to_device();
    plan_.rounding_ = parallel::gradient_rounding(config().parallel.compression);
    plan_.skips_non_finite_ = plan_.precision_.scales_loss || config().train.non_finite == "skip";
  }

  /// Kernels and layouts can be chosen on the CPU only.
  void leave_convolutions_to_device() {
    const ConvolutionRule named = plan_.convolutions_;
    const std::string elsewhere = text("\" is for the CPU, and ranks compute on ", plan_.device_, "; leave ");
    reject_unless(
        named.kernels == ConvolutionKernels::kMeasured || named.kernels == ConvolutionKernels::kAten,
        {set(&RunConfig::train, &TrainOptions::convolution, "auto")}, "train.convolution = \"",
        config().train.convolution, elsewhere, "it at \"auto\", or take train.device = \"cpu\"");
    reject_unless(!named.channels_last.value_or(false),
                  {set(&RunConfig::train, &TrainOptions::memory_format, "auto")}, "train.memory_format = \"",
                  config().train.memory_format, elsewhere, "it at \"auto\", or take train.device = \"cpu\"");
    plan_.convolutions_ = {.kernels = ConvolutionKernels::kAten, .channels_last = false};
  }

  void lay_out_ranks() {
    const std::int64_t asked = config().parallel.data, ranks = plan_.world_size_;
    if (ranks_of_other_axes(config()) == 1) {
      reject_unless(asked == 0 || asked == ranks, {replicas_as_there_are_ranks()}, "parallel.data = ", asked,
                    " needs as many ranks, found ", ranks, "; start it with -n ", asked,
                    ", or leave the key out to use the ranks that there are");
      plan_.num_replicas_ = plan_.world_size_;
      return;
    }
    check_mesh();
    check_tensor();
    check_objective();
    if (is_pipeline()) check_schedule();
    plan_.num_replicas_ = plan_.mesh().size(axes_that_share({Shared::kSamples}));
  }

  /// parallel.data counts the replicas, which all axes that share samples make up.
  std::string mesh_in_words() const {
    const std::int64_t asked = config().parallel.data;
    std::vector<std::string> factors;
    for (const AxisRow& row : mesh_axes()) {
      const bool is_counted = row.is_rest || (row.shares(Shared::kSamples) && asked > 0);
      const std::int64_t size = ranks_along(row, config());
      if (!is_counted && size > 1) factors.push_back(text(row.key, " = ", size));
    }
    if (asked > 0) factors.push_back(text("parallel.data = ", asked));
    return join(factors, " x ");
  }

  void check_mesh() const {
    const std::int64_t asked = config().parallel.data, ranks = plan_.world_size_,
                       experts = config().parallel.expert, others = ranks_of_other_axes(config()),
                       least = min_ranks(config());
    Fixes fixes;
    if (ranks % others == 0) fixes.push_back(replicas_as_there_are_ranks());
    const std::span<const AxisRow> axes = mesh_axes();
    for (auto row = axes.rbegin(); row != axes.rend(); ++row) {
      if (row->is_rest) continue;
      for (Fix& fix : other_ranks_along(row->key, config(), plan_.world_size_))
        fixes.push_back(std::move(fix));
    }
    reject_unless(asked % experts == 0, fixes, "parallel.data = ", asked,
                  asked == 1 ? " replica" : " replicas",
                  " cannot be cut into groups of parallel.expert = ", experts, "; take a multiple of it");
    reject_unless(ranks % others == 0 && (asked == 0 || ranks == least), fixes, mesh_in_words(),
                  " does not fit ", ranks, ranks == 1 ? " rank" : " ranks", "; start it with -n ", least,
                  asked == 0 ? " or a multiple of it" : "", "; ", ranks, ranks == 1 ? " rank" : " ranks",
                  " can be cut by ", divisors_in_words(ranks));
  }

  void check_tensor() const {
    const ParallelOptions& parallel = config().parallel;
    if (parallel.tensor == 1) return;
    const std::string what = text("parallel.tensor = ", parallel.tensor);
    Fixes fixes = other_ranks_along("parallel.tensor", config(), plan_.world_size_);
    fixes.insert(fixes.begin(), synchronous_schedule());
    bool asynchronous = false;
    at_place(pipeline_in_words(config()), {}, [&] { asynchronous = updates_under_way(config()); });
    reject_unless(!asynchronous, fixes, what, " with parallel.schedule = \"", parallel.schedule,
                  "\": it computes with older weights, so that no run on one rank tells whether parts of "
                  "a layer are put together right; take a schedule that updates at the end");
    fixes[0] = set(&RunConfig::optimizer, &optim::OptimizerOptions::name, "adamw");
    reject_unless(
        config().optimizer.name != "lamb" || parallel.compression != "one-bit", fixes, what,
        " with optimizer.name = \"lamb\" and parallel.compression = \"one-bit\": 1-bit LAMB goes by "
        "whole parameters, of which each rank has a part; take adamw, or another compression");
    fixes.insert(fixes.begin(), set(&RunConfig::parallel, &ParallelOptions::zero, 0));
    reject_unless(
        parallel.zero == 0 || !optim::needs_whole_tensors(config().optimizer.name), fixes, what,
        " and parallel.zero = ", parallel.zero, " with optimizer.name = \"", config().optimizer.name,
        "\": it updates whole parameters, and ranks that hold parts of one would have to shard them "
        "alike; leave parallel.zero at 0, or take an optimizer that looks at single numbers");
  }

  void check_objective() const {
    const std::int64_t ranks = config().parallel.context;
    reject_unless(
        ranks == 1 || config().objective.name != "model",
        other_ranks_along("parallel.context", config(), plan_.world_size_), "parallel.context = ", ranks,
        " with objective.name = \"model\": each rank of a sequence computes such a loss as a whole, and "
        "gradients of parameters in it would be counted ",
        ranks, " times; take an objective without parameters");
  }

  void check_schedule() const {
    const std::string& name = config().parallel.schedule;
    const std::string near = nearest(name, schedule::schedule_names());
    const auto ranks = static_cast<std::int64_t>(plan_.world_size_);
    bool asynchronous = false;
    at_place(pipeline_in_words(config()),
             {set(&RunConfig::parallel, &ParallelOptions::schedule, near.empty() ? "1f1b" : near)},
             [&] { asynchronous = updates_under_way(config()); });
    const Fix one_pipeline = [ranks](RunConfig& changed) {
      changed.parallel.pipeline = ranks;
      changed.parallel.data = 0;
    };
    reject_unless(ranks == config().parallel.pipeline || !asynchronous,
                  {synchronous_schedule(), one_pipeline}, "parallel.schedule = \"", name,
                  "\" updates each stage on its own time: ", ranks / config().parallel.pipeline,
                  " pipelines side by side cannot share gradients; start it with -n ",
                  config().parallel.pipeline);
  }

  /// Stages of a rank in a run without a pipeline.
  int stages_of_a_rank(const std::optional<ModelShape>& model) const {
    const std::int64_t asked = std::max<std::int64_t>(1, config().parallel.chunks);
    if (!plan_.stages_are_layers() || !model) return static_cast<int>(asked);
    return std::max(1, static_cast<int>(model->parameters.size()));
  }

  void choose_order(const std::optional<ModelShape>& model) {
    const ParallelOptions& parallel = config().parallel;
    const parallel::ZeroOptions zero = zero_options(config(), plan_.precision_.autocast_to);
    plan_.options_ = {
        .schedule = parallel.schedule,
        .num_microbatches = microbatches_of_a_round(config()),
        .num_chunks = static_cast<int>(parallel.chunks),
        .num_rounds = static_cast<int>(config().train.accumulation),
        .replicas = replicas_of_stages(config()),
        .vertical_sync = parallel.vertical_sync,
        .recompute = parallel.recompute,
        .activations = {.format = parallel::activation_format_of(parallel.activation_compression),
                        .seed = static_cast<std::uint64_t>(config().run.seed)},
        .data_parallel = {.bucket_mib = parallel.bucket_mib,
                          .first_bucket_mib = std::min(1.0, parallel.bucket_mib),
                          .unused_parameters = parallel::unused_parameters_of(parallel.unused_parameters),
                          .scale = parallel::ReduceScale::kSum,
                          .check_replicas_every = 0},  // Trainer checks all replicas, also outside of stages
        .zero = zero};
    parallel::PipelineOptions& options = plan_.options_;
    if (!is_pipeline()) {
      options.program = schedule::data_parallel(options.num_rounds, stages_of_a_rank(model));
      options.num_microbatches = options.num_rounds = 1;
    } else if (is_program_file(parallel.schedule)) {
      options.program = program_in_file(config());
      options.num_microbatches = options.program->num_microbatches;
    }
    plan_.num_microbatches_ =
        (options.program ? options.program->num_microbatches : options.num_microbatches) * options.num_rounds;
  }

  /// Default clipping applies only if there is a norm of all gradients.
  void choose_clipping() {
    double& clip_norm = plan_.config_.train.clip_norm;
    if (lacks(plan_, Property::kGradientNorm) && clip_norm == TrainOptions().clip_norm &&
        !is_named(config(), find_key(config_key_table(config()), "train.clip_norm")))
      clip_norm = 0;
  }

  /// Checks the first batch, which is the smallest: all batches have equally many micro-batches.
  void check_batch() const {
    check_batch_ramp(config());
    const std::vector<std::int64_t>& smaller = config().train.batch_ramp_sizes;
    const std::int64_t batch = smallest_batch(config().train), replicas = plan_.num_replicas_,
                       of_each = plan_.num_microbatches_, rounds = config().train.accumulation;
    const auto at_most = [&](std::int64_t others) { return std::max<std::int64_t>(1, batch / others); };
    Fixes fixes = {
        set(&RunConfig::train, &TrainOptions::accumulation, at_most(replicas * (of_each / rounds)))};
    if (is_pipeline() && !plan_.options_.program)
      fixes.push_back(set(&RunConfig::parallel, &ParallelOptions::microbatches, at_most(replicas * rounds)));
    fixes.push_back([least = replicas * of_each](RunConfig& changed) {
      std::vector<std::int64_t>& sizes = changed.train.batch_ramp_sizes;
      (sizes.empty() ? changed.train.global_batch : sizes.front()) = least;
    });
    reject_unless(batch >= replicas * of_each, fixes,
                  smaller.empty() ? "train.global_batch = " : "a batch of train.batch_ramp_sizes, ", batch,
                  smaller.empty() ? "" : ",", " cannot be split over ", replicas,
                  is_pipeline() ? " pipelines x " : " ranks x ",
                  parts_in_words(config(), plan_.num_microbatches_), ": it needs at least ",
                  replicas * of_each, " samples");
  }

  void make_program(MadeSchedules* schedules) {
    const ParallelOptions& parallel = config().parallel;
    reject_unless(parallel.stage_replicas.empty() || replicates_stages(config()),
                  {set(&RunConfig::parallel, &ParallelOptions::stage_replicas, std::vector<std::int64_t>()),
                   set(&RunConfig::parallel, &ParallelOptions::schedule, "1f1b-rr")},
                  "parallel.stage_replicas = ", to_toml(ConfigValue(parallel.stage_replicas)),
                  " is for pipelines with parallel.schedule = \"1f1b-rr\", found parallel.pipeline = ",
                  parallel.pipeline, " with \"", parallel.schedule, "\"; leave that key out");
    at_place(pipeline_in_words(config()), fixes_of_a_program(config(), plan_.world_size_), [&] {
      parallel::PipelineOptions options = plan_.options_;
      if (schedules != nullptr && !options.program && schedule::find_schedule(options.schedule).is_searched)
        options.program = schedules->make(options.schedule, {.ranks = plan_.pipeline_ranks(),
                                                             .chunks = options.num_chunks,
                                                             .microbatches = options.num_microbatches});
      plan_.program_ =
          parallel::pipeline_program(options, plan_.pipeline_ranks(), schedule::Transport::kBuffered);
    });
  }

  /// Traces and timelines.
  void check_records() {
    const RunOptions& run = config().run;
    at_place("",
             {set(&RunConfig::run, &RunOptions::trace, "trace.json"),
              set(&RunConfig::run, &RunOptions::trace_steps, "")},
             [&] { plan_.trace_ = trace_options(run); });
    const Fix trace_instead = [](RunConfig& changed) {
      if (changed.run.trace.empty()) changed.run.trace = "trace.json";
      changed.run.timeline = "";
    };
    reject_unless(run.timeline.empty() || !plan_.asynchronous(), {trace_instead, synchronous_schedule()},
                  "run.timeline = \"", run.timeline, "\" draws steps, and parallel.schedule = \"",
                  config().parallel.schedule, "\" has none that ranks begin and end together; use run.trace");
  }

  void check_shard_groups() const {
    const ParallelOptions& parallel = config().parallel;
    const std::int64_t asked = parallel.shard_ranks, replicas = plan_.weight_copies();
    if (asked == 0) return;
    const std::string what = text("parallel.shard_ranks = ", asked);
    reject_unless(
        parallel.zero > 0,
        {set(&RunConfig::parallel, &ParallelOptions::zero, 1),
         set(&RunConfig::parallel, &ParallelOptions::shard_ranks, 0)},
        what,
        " with parallel.zero = 0: nothing is sharded over replicas; set parallel.zero, or leave it out");
    reject_unless(asked > 1, other_shard_ranks(plan_.weight_copies()), what,
                  ": a group of one rank shards nothing; take 2 or more, or parallel.zero = 0");
    reject_unless(replicas % asked == 0, other_shard_ranks(plan_.weight_copies()), what, " does not cut ",
                  replicas, " replicas into groups: they can be cut into groups of ",
                  divisors_in_words(replicas));
  }

  void check_shards() const {
    check_shard_groups();
    check_compression_of_shards(plan_);
  }

  /// Fixes settings that would depend on the machine, so that results are the same everywhere.
  void make_exact() {
    if (!config().run.exact) return;
    check_exact(plan_);
    plan_.config_.comm.torch_threads = std::max(1, config().comm.torch_threads);
    reject_unless(
        !config().comm.cuda.benchmark, {[](RunConfig& changed) { changed.comm.cuda.benchmark = false; }},
        "run.exact = true with cuda.benchmark = true: the kernel that was fastest decides the bits; "
        "leave one of the two out");
    plan_.config_.comm.cuda.deterministic = true;
    if (plan_.convolutions_.kernels == ConvolutionKernels::kMeasured)
      plan_.convolutions_ = {.kernels = ConvolutionKernels::kAten,
                             .channels_last = plan_.convolutions_.channels_last.value_or(false)};
  }

  void check_update() const {
    optim::make_optimizer(config().optimizer, {});
    if (!plan_.precision_.scales_loss) return;
    const Fix within_bounds = [](RunConfig& changed) {
      optim::LossScalerOptions& scaler = changed.scaler;
      scaler.initial = std::max(scaler.least, std::min(scaler.most, scaler.initial));
    };
    at_place("", {within_bounds}, [&] { const optim::LossScaler sound(config().scaler); });
  }

  ParallelPlan plan_;
};

ParallelPlan make_plan(const RunConfig& config, int world_size, const std::optional<ModelShape>& model,
                       MadeSchedules* schedules) {
  return PlanMaker::make(config, world_size, model, schedules);
}

ParallelPlan resolve_plan(const RunConfig& config, int world_size, const std::optional<ModelShape>& model) {
  try {
    return make_plan(config, world_size, model);
  } catch (const PlanError& plan_error) {
    RunConfig given = config;  // a fix with another optimizer keeps its values
    given.optimizer = optim::with_defaults(config.optimizer);
    throw suggest_fix(given, plan_error, world_size,
                      [&](const RunConfig& changed) { make_plan(changed, world_size, model); });
  }
}

}  // namespace trireme::train
