#include "trireme/train/pipeline_plan.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/min_max_cuts.h"
#include "trireme/comm/mesh.h"
#include "trireme/plan/chain_cuts.h"
#include "trireme/schedule/schedule_table.h"
#include "trireme/train/layer_profile.h"
#include "trireme/train/precision.h"

namespace trireme::train {
namespace {

bool is_cut(const RunConfig& config) { return config.parallel.pipeline > 1; }

/// 4 micro-batches per rank: bubbles of a fifth at most (Huang et al., arXiv 1811.06965, section 2.3).
/// Without bubbles: as many as two versions of the weights need, or a micro-batch per update.
int microbatches_of_a_round(const RunConfig& config) {
  const std::int64_t asked = config.parallel.microbatches, ranks = config.parallel.pipeline;
  if (asked > 0) return static_cast<int>(asked);
  if (!is_asynchronous(config)) return static_cast<int>(4 * ranks);
  return config.parallel.schedule == "pipedream-2bw" ? static_cast<int>(ranks) : 1;
}

/// What needs all stages to be at the same update.
void check_asynchronous(const RunConfig& config) {
  const auto refuse_if = [&](bool found, const std::string& what, const std::string& reason) {
    require(!found, what, " with parallel.schedule = \"", config.parallel.schedule, "\": ", reason,
            "; leave it out, or take a schedule that updates at the end");
  };
  refuse_if(config.train.clip_norm > 0, text("train.clip_norm = ", config.train.clip_norm),
            "its stages update at different times, and the norm of all gradients together is never known");
  refuse_if(scales_loss(config.train.precision), text("train.precision = \"", config.train.precision, "\""),
            "its stages update at different times, and cannot decide together on the loss scale");
  refuse_if(config.train.non_finite != "stop", text("train.non_finite = \"", config.train.non_finite, "\""),
            "its stages update at different times, and cannot leave a step out together");
  require(config.parallel.schedule != "1f1b-rr",
          "the stages of 1f1b-rr update at different rates, and a run ",
          "counts steps of the whole model: parallel::Pipeline runs it, the trainer does not");
}

schedule::Program program_from(const RunConfig& config) {
  const std::string& file = config.parallel.schedule;
  try {
    schedule::Program program = schedule::parse_csv(read_file(file));
    program.name = file;
    const std::int64_t asked = config.parallel.microbatches;
    require(asked == 0 || asked == program.num_microbatches, "it has ", program.num_microbatches,
            " micro-batches, parallel.microbatches = ", asked, "; leave that key out");
    return program;
  } catch (const InvalidArgument& reason) {
    throw InvalidArgument(text("parallel.schedule = \"", file, "\": ", reason.what()));
  }
}

schedule::Program program_of(const RunConfig& config) {
  return parallel::pipeline_program(pipeline_options(config), static_cast<int>(config.parallel.pipeline),
                                    schedule::Transport::kBuffered);
}

/// Runs `check`; what it refuses gets the key in front.
void at_pipeline(const RunConfig& config, const std::function<void()>& check) {
  try {
    check();
  } catch (const InvalidArgument& reason) {
    throw InvalidArgument(text("parallel.pipeline = ", config.parallel.pipeline, ": ", reason.what()));
  }
}

model::Layer in_precision(model::Layer layer, const std::string& precision) {
  if (layer.forward_all) {
    layer.forward_all = [inner = std::move(layer.forward_all), precision](const model::Tensors& inputs) {
      const PrecisionScope scope(precision);
      return inner(inputs);
    };
    return layer;
  }
  layer.forward = [inner = std::move(layer.forward), precision](const at::Tensor& input) {
    const PrecisionScope scope(precision);
    return inner(input);
  };
  return layer;
}

std::vector<int> uniform_cuts(std::size_t num_layers, int num_stages) {
  const std::vector<double> alike(num_layers, 1);
  const std::vector<std::size_t> ends = min_max_cuts(alike, static_cast<std::size_t>(num_stages));
  return {ends.begin(), ends.end() - 1};
}

/// Inputs of as many samples as a micro-batch has.
at::Tensor microbatch_of(const RunConfig& config, const comm::Context& context,
                         const data::DataSource& data) {
  const std::int64_t parts =
      std::int64_t{num_replicas(config, context.world_size())} * num_microbatches(config);
  const std::int64_t samples = std::min((config.train.global_batch + parts - 1) / parts, data.train->size());
  std::vector<std::int64_t> indices(static_cast<std::size_t>(samples));
  std::iota(indices.begin(), indices.end(), 0);
  return data.train->get_batch(indices).input;
}

}  // namespace

bool is_asynchronous(const RunConfig& config) {
  const std::string& name = config.parallel.schedule;
  return is_cut(config) && !name.ends_with(".csv") && schedule::find_schedule(name).asynchronous;
}

int num_replicas(const RunConfig& config, int world_size) {
  const std::int64_t per_replica = config.parallel.pipeline, asked = config.parallel.data;
  if (per_replica == 1) {
    require(asked == 0 || asked == world_size, "parallel.data = ", asked, " needs as many ranks, found ",
            world_size, "; start it with -n ", asked,
            ", or leave the key out to use the ranks that there are");
    return world_size;
  }
  require(world_size % per_replica == 0 && (asked == 0 || asked * per_replica == world_size),
          "parallel.pipeline = ", per_replica,
          asked == 0 ? std::string() : text(" x parallel.data = ", asked), " does not fit ", world_size,
          world_size == 1 ? " rank" : " ranks", "; start it with -n ",
          per_replica * std::max<std::int64_t>(asked, 1), asked == 0 ? " or a multiple of it" : "");
  require(world_size == per_replica || !is_asynchronous(config), "parallel.schedule = \"",
          config.parallel.schedule, "\" updates each stage on its own time: ", world_size / per_replica,
          " pipelines side by side cannot share gradients; start it with -n ", per_replica);
  return static_cast<int>(world_size / per_replica);
}

parallel::PipelineOptions pipeline_options(const RunConfig& config) {
  parallel::PipelineOptions options{
      .schedule = config.parallel.schedule,
      .num_microbatches = microbatches_of_a_round(config),
      .num_chunks = static_cast<int>(config.parallel.chunks),
      .num_rounds = static_cast<int>(config.train.accumulation),
      .vertical_sync = config.parallel.vertical_sync,
      .recompute = config.parallel.recompute,
      .data_parallel = {
          .bucket_mib = config.parallel.bucket_mib,
          .first_bucket_mib = std::min(1.0, config.parallel.bucket_mib),
          .unused_parameters = parallel::unused_parameters_of(config.parallel.unused_parameters),
          .scale = parallel::ReduceScale::kSum,
          .hook = parallel::make_comm_hook(config.parallel.compression)}};
  if (!is_cut(config)) {
    options.program = schedule::data_parallel(options.num_rounds);
    options.num_microbatches = options.num_rounds = 1;
  } else if (config.parallel.schedule.ends_with(".csv")) {
    options.program = program_from(config);
    options.num_microbatches = options.program->num_microbatches;
  }
  return options;
}

int num_microbatches(const RunConfig& config) {
  const parallel::PipelineOptions options = pipeline_options(config);
  return (options.program ? options.program->num_microbatches : options.num_microbatches) *
         options.num_rounds;
}

bool finishes_in_order(const RunConfig& config) {
  const schedule::Program program = program_of(config);
  for (const std::vector<schedule::Action>& actions : program.ranks) {
    std::map<int, int> last;  // by stage
    for (const schedule::Action& action : actions) {
      if (action.kind != schedule::ActionKind::kBackward &&
          action.kind != schedule::ActionKind::kBackwardWeight) {
        continue;
      }
      const auto [before, is_first] = last.try_emplace(action.stage, action.microbatch);
      if (!is_first && action.microbatch < before->second) return false;
      before->second = action.microbatch;
    }
  }
  return true;
}

void check_program(const RunConfig& config) {
  if (!is_cut(config)) return;
  at_pipeline(config, [&] {
    if (is_asynchronous(config)) check_asynchronous(config);
    program_of(config);
  });
}

void check_layers(const RunConfig& config, model::Model& model) {
  if (!is_cut(config)) return;
  const std::size_t num_layers = layers_for(config, model).size();
  at_pipeline(config, [&] {
    const schedule::Program program = program_of(config);
    require(program.num_stages <= static_cast<int>(num_layers), "schedule '", program.name, "' has ",
            program.num_stages, " stages, the model only ", num_layers,
            " layers; lower parallel.pipeline or parallel.chunks");
  });
}

parallel::PipelineGroups make_pipeline_groups(const RunConfig& config, comm::Context& context) {
  const int replicas = num_replicas(config, context.world_size());
  if (replicas == 1) return {.pipeline = context.world()};
  const auto stages = static_cast<int>(config.parallel.pipeline);
  if (stages == 1) return {.pipeline = context.self(), .data = context.world()};
  comm::Mesh mesh(context, {{"pp", stages}, {"dp", replicas}});
  return {.pipeline = mesh.group("pp"), .data = mesh.group("dp")};
}

std::vector<model::Layer> layers_for(const RunConfig& config, model::Model& model) {
  std::vector<model::Layer> layers;
  if (is_cut(config)) {
    layers = model.layers();
    require(!layers.empty(), "parallel.pipeline = ", config.parallel.pipeline, ": the model of type ",
            model.name(), " cannot be cut: it has no layers(); train it with parallel.pipeline = 1");
  } else {
    layers.push_back(model::whole(model));
  }
  for (model::Layer& layer : layers) layer = in_precision(std::move(layer), config.train.precision);
  return layers;
}

std::vector<std::string> partition_names() { return {"auto", "time", "parameters", "uniform"}; }

std::vector<int> cuts_for(const RunConfig& config, comm::Context& context,
                          const std::vector<model::Layer>& layers, const data::DataSource& data) {
  const std::string& partition = config.parallel.partition;
  if (!is_cut(config) || partition == "parameters") return {};
  const int stages = program_of(config).num_stages;
  if (partition == "uniform") return uniform_cuts(layers.size(), stages);
  at::Tensor cuts = at::zeros({stages - 1}, at::kLong);
  if (context.is_main()) {
    const telemetry::OwnWork work(context.status(), "measuring the layers of the model");
    const std::vector<plan::Layer> profile = profile_layers(layers, microbatch_of(config, context, data));
    const auto found = plan::cut_chain(profile, {.num_stages = static_cast<std::size_t>(stages)});
    std::copy(found.begin(), found.end(), cuts.data_ptr<std::int64_t>());
  }
  context.world().broadcast(cuts, 0);
  const auto* first = cuts.const_data_ptr<std::int64_t>();
  return {first, first + cuts.numel()};
}

}  // namespace trireme::train
