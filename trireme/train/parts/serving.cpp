#include "trireme/train/parts/internal/serving.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/etcd/find.h"
#include "trireme/parallel/served/served_optimizer.h"
#include "trireme/parallel/served/served_security.h"
#include "trireme/train/parts/internal/compression.h"
#include "trireme/train/plan/internal/fixes.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {

std::vector<std::string> mode_names() { return {"all-reduce", "ps"}; }

void check_serving(const ParallelPlan& plan) {
  if (!plan.uses_parameter_server()) return;
  const RunConfig& config = plan.config();
  using Parallel = ParallelOptions;
  const Fix all_reduce = set(&RunConfig::parallel, &Parallel::mode, "all-reduce");
  const auto reject_if = [&](bool found, const Fix& fix, const auto&... reason) {
    if (found) throw PlanError(text("parallel.mode = \"ps\": ", reason...), {fix, all_reduce});
  };
  const Parallel& parallel = config.parallel;
  const std::vector<std::string> codecs = parallel::served_codec_names();
  reject_if(std::ranges::find(codecs, parallel.compression) == codecs.end(),
            set(&RunConfig::parallel, &Parallel::compression, "int8"), "parallel.compression = \"",
            parallel.compression, "\" is for gradients that ranks reduce; pushes to servers go with ",
            join(codecs));
  reject_if(config.served.delay_compensation > 0 && config.served.staleness == 0,
            set(&RunConfig::served, &parallel::ServedOptions::delay_compensation, 0.0),
            "ps.delay_compensation = ", config.served.delay_compensation,
            ": with ps.staleness = 0 gradients are of the values that they meet, and there is no delay");
  reject_if(config.served.delay_compensation > 0 && parallel.compression != "none",
            set(&RunConfig::served, &parallel::ServedOptions::delay_compensation, 0.0),
            "ps.delay_compensation = ", config.served.delay_compensation,
            ": a push has the values after its gradient, and they are not compressed; found "
            "parallel.compression = \"",
            parallel.compression, "\"");
  const std::vector<std::string> served = parallel::served_optimizer_names();
  reject_if(std::ranges::find(served, config.optimizer.name) == served.end(),
            set(&RunConfig::optimizer, &optim::OptimizerOptions::name, "adamw"), "optimizer.name = \"",
            config.optimizer.name, "\": servers have ", join(served));
  reject_if(config.optimizer.centered, set(&RunConfig::optimizer, &optim::OptimizerOptions::centered, false),
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
  if (!plan.uses_parameter_server())
    return optim::make_optimizer(optimizer_options(plan), parameters, offload, std::move(parts));
  const comm::LaunchEnvironment& environment = context.environment();
  parallel::Service service{
      .options = config.served,
      .run = config.run.name,
      .compression = {.push = config.parallel.compression, .fraction = config.parallel.compression_fraction},
      .timeout_s = config.comm.timeout_s,
      .status = &context.status()};
  service.loop.look_up = etcd::look_up_in_etcd();
  if (!service.options.coordinator.empty()) {
    service.loop.security =
        parallel::security_of_servers(service.options.coordinator, environment.secret, variable);
  } else if (const auto key = wire::Secret::of_servers(variable); !key.empty()) {
    service.loop.security = wire::Security::with_secret(key, wire::is_encrypted(variable));
  }
  if (service.options.coordinator.empty()) service.options.coordinator = environment.parameter_server;
  require(
      !service.options.coordinator.empty(),
      "parallel.mode is \"ps\", and no address of servers is given: start the run with --servers N, or set "
      "ps.coordinator to the address of a coordinator (trireme serve-coordinator)");
  const telemetry::OwnWork work(context.status(), "joining the parameter server");
  return std::make_unique<parallel::ServedOptimizer>(service, config.optimizer, parameters, context.world());
}

std::vector<model::Layer> waiting_for_values(std::vector<model::Layer> layers,
                                             const std::shared_ptr<optim::Optimizer*>& optimizer) {
  for (model::Layer& layer : layers) {
    layer.forward = [inner = std::move(layer.forward), parameters = layer.parameters,
                     optimizer](const Fields& inputs) {
      if (*optimizer != nullptr) (*optimizer)->finish_pending_updates(parameters);
      return inner(inputs);
    };
  }
  return layers;
}

namespace {

/// Without a bound, ranks may be that many steps apart. A report is a small tensor.
constexpr int kMaxDrift = 64;

class ServerUpdates final : public StepPart {
 public:
  explicit ServerUpdates(const PartSetup& setup)
      : drifts_(setup.plan.is_stale_synchronous()),
        staleness_(static_cast<int>(setup.plan.config().served.staleness)),
        ranks_(setup.context.world()),
        context_(setup.context) {}

  /// Ranks do not reduce gradients: the pipeline has no replicas to reduce over.
  void configure(PipelineSetup& setup) override {
    setup.groups.data.reset();
    setup.layers = waiting_for_values(std::move(setup.layers), optimizer_);
    setup.options.gradient_is_final = [optimizer = optimizer_](const at::Tensor& parameter) {
      if (*optimizer != nullptr) (*optimizer)->gradient_is_final(parameter);
    };
  }
  void attach(const TrainerObjects& objects) override {
    *optimizer_ = &objects.optimizer;
    objects_.emplace(objects);
  }
  std::optional<ReportExchange> report_exchange() const override {
    if (!drifts_) return std::nullopt;
    return ReportExchange{.depth = staleness_ < 0 ? kMaxDrift : staleness_ + 1};
  }
  void begin_step(Step& step) override { step_ = step.report.step; }
  /// The sums of all ranks' gradients.
  std::optional<optim::NamedTensors> observed_gradients() override {
    optim::NamedTensors sums;
    for (const auto& [name, parameter] : objects_->parameters.all) {
      sums.emplace_back(name, parameter.grad().clone());
      ranks_.all_reduce(sums.back().second);
    }
    return sums;
  }
  void end_step(Step& step) override {
    if (drifts_) step.report.staleness = objects_->optimizer.staleness();
  }
  /// Unless the bound is 0, each push is a separate update, so servers never have an incomplete step.
  Completion completion() const override { return drifts_ ? Completion::kOwn : Completion::kCollective; }
  void complete_own_state() override { objects_->optimizer.pull_state(); }
  /// All ranks get the buffers of rank 0.
  void synchronize() override {
    context_.status().set_action(text("step ", step_, ": waiting for the steps of all ranks"));
    objects_->optimizer.synchronize();
    if (ranks_.size() == 1) return;
    const at::NoGradGuard no_grad;
    for (const auto& [name, buffer] : objects_->pipeline.buffers()) {
      at::Tensor shared = buffer.detach();
      ranks_.broadcast(shared, /*root=*/0);
    }
  }
  void restored(std::int64_t steps_done) override { step_ = steps_done; }

 private:
  const bool drifts_;
  const int staleness_;
  comm::Group ranks_;
  comm::Context& context_;
  const std::shared_ptr<optim::Optimizer*> optimizer_ = std::make_shared<optim::Optimizer*>(nullptr);
  std::optional<TrainerObjects> objects_;
  std::int64_t step_ = 0;  ///< the current or the last one
};

}  // namespace

std::unique_ptr<StepPart> make_server_updates(const PartSetup& setup) {
  return setup.plan.uses_parameter_server() ? std::make_unique<ServerUpdates>(setup) : nullptr;
}

}  // namespace trireme::train
