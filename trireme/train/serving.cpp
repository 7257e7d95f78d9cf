#include "trireme/train/internal/serving.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/etcd/find.h"
#include "trireme/parallel/served/served_optimizer.h"
#include "trireme/parallel/served/served_security.h"
#include "trireme/train/internal/compression.h"
#include "trireme/train/internal/cures.h"

namespace trireme::train {

std::vector<std::string> mode_names() { return {"all-reduce", "ps"}; }

void check_serving(const ParallelPlan& plan) {
  if (!plan.served()) return;
  const RunConfig& config = plan.config();
  using Parallel = ParallelOptions;
  using Train = TrainOptions;
  const Cure all_reduce = set(&RunConfig::parallel, &Parallel::mode, "all-reduce");
  const auto refuse_if = [&](bool found, const Cure& cure, const auto&... reason) {
    if (found) throw Refusal(text("parallel.mode = \"ps\": ", reason...), {cure, all_reduce});
  };
  const Parallel& parallel = config.parallel;
  refuse_if(parallel.pipeline > 1, set(&RunConfig::parallel, &Parallel::pipeline, 1),
            "parallel.pipeline = ", parallel.pipeline,
            " cuts the model, and each rank over servers computes all of it");
  refuse_if(parallel.tensor > 1, set(&RunConfig::parallel, &Parallel::tensor, 1),
            "parallel.tensor = ", parallel.tensor,
            " cuts layers, and each rank over servers computes all of them");
  refuse_if(parallel.context > 1, set(&RunConfig::parallel, &Parallel::context, 1),
            "parallel.context = ", parallel.context,
            " cuts sequences, and each rank over servers reads samples of its own");
  refuse_if(parallel.zero > 0, set(&RunConfig::parallel, &Parallel::zero, 0),
            "parallel.zero = ", parallel.zero, " shares out among ranks what servers hold already");
  refuse_if(parallel.chunks > 1, set(&RunConfig::parallel, &Parallel::chunks, 0),
            "parallel.chunks = ", parallel.chunks, " makes stages, of which a rank over servers has one");
  const std::vector<std::string> codecs = parallel::served_codec_names();
  refuse_if(std::ranges::find(codecs, parallel.compression) == codecs.end(),
            set(&RunConfig::parallel, &Parallel::compression, "int8"), "parallel.compression = \"",
            parallel.compression, "\" is for gradients that ranks reduce; pushes to servers go with ",
            join(codecs));
  refuse_if(parallel.unused_parameters != "error",
            set(&RunConfig::parallel, &Parallel::unused_parameters, "error"),
            "parallel.unused_parameters = \"", parallel.unused_parameters,
            "\": servers update whole tables, and need every gradient");
  refuse_if(config.train.clip_norm > 0, set(&RunConfig::train, &Train::clip_norm, 0.0),
            "train.clip_norm = ", config.train.clip_norm,
            ": no rank has the sum of all gradients, of which the norm would be");
  refuse_if(
      plan.skips_non_finite(),
      [](RunConfig& changed) {
        changed.train.non_finite = "stop";
        if (changed.train.precision == "fp16") changed.train.precision = "bf16";
      },
      "train.precision = \"", config.train.precision, "\" with train.non_finite = \"",
      config.train.non_finite, "\" leaves steps out, on which ranks over servers cannot decide together");
  refuse_if(config.train.ema_decay > 0, set(&RunConfig::train, &Train::ema_decay, 0.0),
            "train.ema_decay = ", config.train.ema_decay,
            ": ranks do not see every update, of which an average would be");
  refuse_if(plan.exact(), set(&RunConfig::run, &RunOptions::exact, false),
            "run.exact = true: servers add gradients up rank by rank, not along one tree");
  refuse_if(
      plan.offloads(), [](RunConfig& changed) { changed.offload = {}; },
      "offload: what servers hold is not on the ranks");
  refuse_if(config.served.delay_compensation > 0 && config.served.staleness == 0,
            set(&RunConfig::served, &parallel::ServedOptions::delay_compensation, 0.0),
            "ps.delay_compensation = ", config.served.delay_compensation,
            ": with ps.staleness = 0 gradients are of the values that they meet, and there is no delay");
  refuse_if(config.served.delay_compensation > 0 && parallel.compression != "none",
            set(&RunConfig::served, &parallel::ServedOptions::delay_compensation, 0.0),
            "ps.delay_compensation = ", config.served.delay_compensation,
            ": a push has the values behind its gradient, and they are not compressed; found "
            "parallel.compression = \"",
            parallel.compression, "\"");
  const std::vector<std::string> served = parallel::served_optimizer_names();
  refuse_if(std::ranges::find(served, config.optimizer.name) == served.end(),
            set(&RunConfig::optimizer, &optim::OptimizerOptions::name, "adamw"), "optimizer.name = \"",
            config.optimizer.name, "\": servers have ", join(served));
  refuse_if(config.optimizer.centered, set(&RunConfig::optimizer, &optim::OptimizerOptions::centered, false),
            "optimizer.centered = true: servers have no centered rmsprop");
}

namespace {

std::optional<std::string> variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

std::unique_ptr<optim::Optimizer> optimizer_for(const ParallelPlan& plan, comm::Context& context,
                                                const optim::NamedTensors& parameters,
                                                const std::shared_ptr<optim::Offload>& offload,
                                                std::shared_ptr<const optim::TensorParts> parts) {
  const RunConfig& config = plan.config();
  if (!plan.served())
    return optim::make_optimizer(optimizer_options(plan), parameters, offload, std::move(parts));
  const comm::LaunchEnvironment& environment = context.environment();
  parallel::Service service{.options = config.served,
                            .run = config.run.name,
                            .compression = {.push = config.parallel.compression,
                                            .fraction = config.parallel.compression_fraction,
                                            .threshold = config.parallel.compression_threshold},
                            .timeout_s = config.comm.timeout_s,
                            .status = &context.status()};
  service.loop.look_up = etcd::look_up_in_etcd();
  if (!service.options.coordinator.empty()) {
    service.loop.security =
        parallel::security_of_servers(service.options.coordinator, environment.secret, variable);
  } else if (!environment.secret.empty()) {
    service.loop.security = wire::Security::with_secret(environment.secret);
  }
  if (service.options.coordinator.empty()) service.options.coordinator = environment.parameter_server;
  require(
      !service.options.coordinator.empty(),
      "parallel.mode is \"ps\", and nobody says where servers are: start the run with --servers N, or set "
      "ps.coordinator to the address of a coordinator (trireme serve-coordinator)");
  const telemetry::OwnWork work(context.status(), "joining the parameter server");
  return std::make_unique<parallel::ServedOptimizer>(service, config.optimizer, parameters, context.world());
}

std::vector<model::Layer> ArrivingRun::arriving(std::vector<model::Layer> layers) const {
  for (model::Layer& layer : layers) {
    layer.forward = [inner = std::move(layer.forward), parameters = layer.parameters,
                     place = place_](const Fields& inputs) {
      if (place->optimizer != nullptr) place->optimizer->arrive(parameters);
      return inner(inputs);
    };
  }
  return layers;
}

void ArrivingRun::add_to(parallel::PipelineOptions& options) const {
  options.gradient_is_final = [place = place_](const at::Tensor& parameter) {
    if (place->optimizer != nullptr) place->optimizer->gradient_is_final(parameter);
  };
}

optim::NamedTensors sums_over(comm::Group ranks, const optim::NamedTensors& parameters) {
  optim::NamedTensors sums;
  for (const auto& [name, parameter] : parameters) {
    sums.emplace_back(name, parameter.grad().clone());
    ranks.all_reduce(sums.back().second);
  }
  return sums;
}

void share_buffers(comm::Group ranks, const optim::NamedTensors& buffers) {
  if (ranks.size() == 1) return;
  const at::NoGradGuard no_grad;
  for (const auto& [name, buffer] : buffers) {
    at::Tensor shared = buffer.detach();
    ranks.broadcast(shared, /*root=*/0);
  }
}

parallel::PipelineGroups pipeline_groups(const ParallelPlan& plan, const PlanGroups& groups) {
  parallel::PipelineGroups result = groups.of_pipeline();
  if (plan.served()) result.data.reset();
  return result;
}

}  // namespace trireme::train
