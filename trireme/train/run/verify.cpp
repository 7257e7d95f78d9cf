#include "trireme/train/run/verify.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <map>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/checkpoint/shard_exchange.h"
#include "trireme/train/config/batch_ramp.h"
#include "trireme/train/plan/internal/fixes.h"
#include "trireme/train/run/recovery.h"
#include "trireme/train/step/shard_specs.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

optim::NamedTensors copies(const optim::NamedTensors& tensors) {
  optim::NamedTensors result;
  for (const auto& [name, tensor] : tensors) {
    result.emplace_back(name, tensor.defined() ? tensor.detach().clone() : tensor);
  }
  return result;
}

checkpoint::TensorMap map_of(const optim::NamedTensors& tensors) {
  checkpoint::TensorMap map;
  for (const auto& [name, tensor] : tensors) map.emplace(name, tensor.detach());
  return map;
}

/// Replaces an undefined gradient.
at::Tensor zeros_for(const at::Tensor& parameter) {
  return parameter.is_meta() ? at::zeros(parameter.sizes(), at::TensorOptions(parameter.scalar_type()))
                             : at::zeros_like(parameter);
}

/// Results of one trainer's step: this rank's, and on rank 0 those of all ranks.
struct Done {
  optim::NamedTensors gradients, weights;
  double loss = 0;
  bool skipped = false;
};

class Recorder {
 public:
  Recorder(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
           const OwnParts& own)
      : context_(context),
        trainer_(plan, context, data, own.make_model ? own.make_model() : nullptr, own.objective),
        catalogue_(context.world(), shards(trainer_.parameters())),
        to_main_(context.world(), shards(trainer_.parameters()),
                 checkpoint::whole_shards(map_of(room_for_all()))) {
    trainer_.on_gradients([this](const optim::NamedTensors& gradients) { gradients_ = copies(gradients); });
  }

  const Done& step() {
    done_ = {};
    gradients_.clear();
    trainer_.step();
    const StepReport report = *trainer_.last_report();
    trainer_.complete_state();
    done_.loss = report.loss;
    done_.skipped = report.skipped;
    if (!gradients_.empty()) done_.gradients = gathered(gradients_);
    done_.weights = weights();
    return done_;
  }
  /// Weights of all ranks, on rank 0.
  optim::NamedTensors weights() { return gathered(trainer_.parameters()); }
  Trainer& trainer() { return trainer_; }

 private:
  /// Shards of this rank's tensors.
  checkpoint::Shards shards(const optim::NamedTensors& mine) const {
    checkpoint::Shards shards = shards_of(map_of(mine), trainer_.held());
    for (checkpoint::Shard& shard : shards) {
      if (shard.tensor.is_meta()) shard.offloaded_storage = trainer_.offloaded_storage();
    }
    return shards;
  }

  /// Copies, in the model's order; empty on other ranks than 0.
  optim::NamedTensors gathered(const optim::NamedTensors& mine) {
    const at::NoGradGuard no_grad;
    optim::NamedTensors defined;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const auto& [name, tensor] = mine[i];
      defined.emplace_back(name, tensor.defined() ? tensor : zeros_for(trainer_.parameters()[i].second));
    }
    optim::NamedTensors all = room_for_all();
    to_main_.run(shards(defined), checkpoint::whole_shards(map_of(all)));
    return all;
  }

  /// For the parameters of all ranks, in the model's order; nothing on other ranks than 0.
  optim::NamedTensors room_for_all() {
    optim::NamedTensors room;
    if (!context_.is_main()) return room;
    for (const auto& item : trainer_.model().named_parameters()) {
      const auto entries = catalogue_.of(item.key());
      if (entries.empty()) continue;
      const at::TensorOptions options(entries[0].type);
      room.emplace_back(item.key(), at::empty(entries[0].global_sizes, options));
    }
    return room;
  }

  comm::Context& context_;
  Trainer trainer_;
  const checkpoint::ShardCatalogue catalogue_;  ///< of the parameters
  checkpoint::ShardExchange to_main_;           ///< of the parameters
  optim::NamedTensors gradients_;
  Done done_;
};

/// The same run on one rank, with one micro-batch for each part of the parallel run.
ParallelPlan serial_plan(const ParallelPlan& plan) {
  RunConfig serial = plan.config();
  serial.train.accumulation = plan.num_parts();
  serial.train.recompute_layers = {};
  serial.train.activation_budget = "";
  serial.parallel = {.bucket_mib = serial.parallel.bucket_mib};
  serial.offload = {};
  serial.comm.backend = "auto";
  serial.comm.torch_threads = at::get_num_threads();
  return resolve_plan(serial, 1);
}

/// The same run with every size of its batch ramp within these steps, and without adaptive changes.
ParallelPlan plan_of_steps(const ParallelPlan& plan, std::int64_t steps) {
  RunConfig config = plan.config();
  if (config.train.batch_ramp_sizes.empty() && !config.train.adapt) return plan;
  config.train.adapt = false;
  config.train = ramp_within(config.train, steps);
  const ParallelPlan result = resolve_plan(config, plan.world_size());
  return plan.cuts().empty() ? result : result.with_cuts(plan.cuts());
}

/// Whether every stage ends its backwards in the order of micro-batches, so that gradients are added as on
/// one rank.
bool finishes_in_order(const schedule::Program& program) {
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

/// One line per weight: this rank's part of it and the digest.
std::string digests_of(const Trainer& trainer) {
  std::string lines;
  for (const checkpoint::Shard& shard : shards_of(map_of(trainer.parameters()), trainer.held())) {
    const at::Tensor values =
        shard.tensor.is_meta() ? trainer.offloaded_storage()->fetch(shard.tensor) : shard.tensor;
    const checkpoint::TensorMap alone = {{shard.name, values.contiguous()}};
    lines +=
        text(shard.name, '\t', checkpoint::describe(shard.box()), '\t', checkpoint::xxh3_of(alone), '\n');
  }
  return lines;
}

/// Finds ranks whose copy of a weight, or of the same part of it, differs from that of the first holder.
void compare_replicas(Comparison& comparison, std::int64_t step, comm::Group group, const Trainer& trainer) {
  struct First {
    int rank;
    std::string digest;
  };
  std::map<std::string, First> known;  // by name and box
  const std::vector<std::string> all = group.all_gather_text(digests_of(trainer));
  for (int rank = 0; rank < group.size(); ++rank) {
    for (const std::string& line : split(all[static_cast<std::size_t>(rank)], '\n')) {
      const auto digest = line.rfind('\t');
      if (digest == std::string::npos) continue;
      const auto [first, is_new] =
          known.try_emplace(line.substr(0, digest), First{rank, line.substr(digest)});
      if (is_new || first->second.digest == line.substr(digest)) continue;
      comparison.replica_differs(step, rank, first->second.rank, line.substr(0, line.find('\t')));
      break;
    }
  }
}

void compare_step(Comparison& comparison, std::int64_t step, const optim::NamedTensors& before,
                  const Done& found, const Done& expected) {
  if (found.skipped != expected.skipped) {
    return comparison.skipped_by_one(step,
                                     found.skipped ? Comparison::Side::kFound : Comparison::Side::kExpected);
  }
  // The loss of a skipped step may be NaN or Inf.
  if (found.skipped) return comparison.skipped(step, before, found.weights);
  comparison.loss(step, found.loss, expected.loss);
  comparison.gradients(step, found.gradients, expected.gradients);
  comparison.weights(step, before, found.weights, expected.weights);
}

/// Throws PlanError.
void reject_unverifiable(const ParallelPlan& plan) {
  if (plan.world_size() < 2 && plan.num_parts() < 2 && !plan.offloads() && !plan.offloads_activations()) {
    throw PlanError(
        "there is nothing to verify: one rank and train.accumulation = 1 is the serial run; start it with -n "
        "2",
        {set(&RunConfig::train, &TrainOptions::accumulation, 2)});
  }
  if (plan.rounding().is_lossy) {
    throw PlanError(
        text("parallel.compression = \"", plan.config().parallel.compression,
             "\" leaves out of a step's gradients what it sends later, or rounds stochastically, by design: "
             "no serial run has the same steps; verify the run without it"),
        {set(&RunConfig::parallel, &ParallelOptions::compression, "none")});
  }
  if (plan.rounds_activations()) {
    throw PlanError(
        text(
            "parallel.activation_compression = \"", plan.config().parallel.activation_compression,
            "\" rounds what a stage computes with, by design, and how far that carries is the model's: there "
            "is no bound within which one rank has the same steps; verify the run without it"),
        {set(&RunConfig::parallel, &ParallelOptions::activation_compression, "none")});
  }
  if (plan.rounds_weights()) {
    throw PlanError(
        text("parallel.weight_compression = \"", plan.config().parallel.weight_compression,
             "\" rounds the weights that ranks compute with, by design, and how far that carries is the "
             "model's: "
             "there is no bound within which one rank has the same steps; verify the run without it"),
        {set(&RunConfig::parallel, &ParallelOptions::weight_compression, "none")});
  }
  if (plan.uses_local_sgd()) {
    throw PlanError(
        text("parallel.local_steps = ", plan.config().parallel.local_steps,
             ": sites take steps of their own, by design, and no serial run of the whole batch has the "
             "same; verify the run without it"),
        {replicas_together()});
  }
  if (!plan.asynchronous()) return;
  throw PlanError(
      text("parallel.schedule = \"", plan.config().parallel.schedule,
           "\" computes with older weights than one rank would, by design: there is no serial run "
           "that it is to equal step by step; verify a schedule that updates at the end"),
      {synchronous_schedule()});
}

}  // namespace

namespace {

/// The terms of a sum over ranks are rounded to the format of the activations, and so is the sum. The same
/// holds for blocks of attention.
void take_rounding_of_activations(Bounds& bounds, const Precision& precision) {
  if (precision.autocast_to == at::kFloat) return;
  bounds.loss = 4 * precision.rounding;
  bounds.gradient = 16 * precision.rounding;
  bounds.weight = 4 * bounds.gradient;
  bounds.reason = text("layers, or attention, are sums over ranks, in ", precision.name);
}

}  // namespace

Bounds bounds_of(const ParallelPlan& plan, const Ranks& ranks) {
  const RunConfig& config = plan.config();
  const std::int64_t parts = plan.num_parts();
  const bool adaptive = optim::normalises_gradients(config.optimizer.name);
  const bool adds_by_rank = ranks.backend == "shm" || ranks.backend == "threads";
  const bool whole_layers = !plan.is_model_parallel();
  const bool one_each = plan.num_microbatches() == 1 && adds_by_rank && !plan.has_shard_groups();
  const bool one_pipeline = plan.weight_copies() == 1 && finishes_in_order(plan.program());
  const bool in_order = whole_layers && ((parts <= 2 && !ranks.share_parameters) || one_each ||
                                         (one_pipeline && !ranks.share_parameters));
  if (plan.rounding().relative > 0) {
    const double gradient = 2 * plan.rounding().relative;  // rounded as an addend, and as the sum
    return {.loss = 1e-6,
            .gradient = gradient,
            .weight = adaptive ? 0.5 : 4 * gradient,
            .gradient_loss = plan.rounding().absolute * plan.weight_copies(),
            .reason = text("gradients travel as ", config.parallel.compression)};
  }
  if (plan.exact()) {
    return {.loss = 0, .gradient = 0, .weight = 0, .reason = "run.exact: bits do not depend on the ranks"};
  }
  const bool norm_in_pieces = plan.is_sharded() && config.train.clip_norm > 0;
  if (in_order && norm_in_pieces) {
    return {.loss = 1e-6,
            .gradient = 0,
            .weight = adaptive ? 0.05 : 1e-5,
            .reason =
                "the parts are added in the same order, the norm to which gradients are clipped in another"};
  }
  if (in_order && plan.uses_parameter_server()) {
    return {
        .loss = 1e-6,
        .gradient = 0,
        .weight = 1e-4,
        .reason = "the parts are added in the same order; servers round an update after other operations"};
  }
  if (in_order) {
    return {.loss = 1e-6, .gradient = 0, .weight = 0, .reason = "the parts are added in the same order"};
  }
  Bounds bounds{.loss = 1e-6,
                .gradient = 1e-5,
                .weight = 1e-4,
                .reason = text(parts, " parts are added in another order: rounding of f32")};
  if (!whole_layers) {
    bounds.reason =
        text(plan.tensor_ranks() > 1 ? "layers" : "attention and gradients", " are sums over ",
             plan.tensor_ranks() > 1 ? plan.tensor_ranks() : plan.context_ranks(), " ranks: rounding of f32");
    take_rounding_of_activations(bounds, plan.precision());
  }
  if (adaptive) {
    bounds.weight = std::max(0.05, 8 * bounds.weight);
    bounds.reason += text("; ", config.optimizer.name, " divides gradients by their own size");
  }
  return bounds;
}

void check_verifiable(const ParallelPlan& plan) {
  try {
    reject_unverifiable(plan);
  } catch (const PlanError& plan_error) {
    throw suggest_fix(plan.config(), plan_error, plan.world_size(), [&](const RunConfig& changed) {
      reject_unverifiable(resolve_plan(changed, plan.world_size()));
    });
  }
}

Comparison verify(const RunConfig& config, comm::Context& context, const data::DataSource& data,
                  std::int64_t steps, const OwnParts& own) {
  return verify(resolve_plan(config, context.world_size()), context, data, steps, own);
}

Comparison verify(const ParallelPlan& of_run, comm::Context& context, const data::DataSource& data,
                  std::int64_t steps, const OwnParts& own) {
  const ParallelPlan plan = plan_of_steps(of_run, steps);
  check_verifiable(plan);
  require(
      data.train->is_repeatable(), "the samples of ", data.name,
      " are made as they are asked for: there is no serial run on the same ones to compare with. Make each "
      "sample from its place and say so (ProducedOptions::keyed)");
  Recorder parallel(plan, context, data, own);
  std::shared_ptr<comm::Context> alone;
  std::unique_ptr<Recorder> serial;
  if (context.is_main()) {
    const ParallelPlan of_one = serial_plan(plan);
    alone = comm::Context::join({}, of_one.config().comm);
    serial = std::make_unique<Recorder>(of_one, *alone, data, own);
  }
  // The serial run starts with the state of the parallel one.
  const auto state_of = [](Recorder* recorder) {
    return recorder == nullptr ? checkpoint::Shards() : shards_of(recorder->trainer().state());
  };
  checkpoint::ShardExchange to_serial(context.world(), shards_of(parallel.trainer().state()),
                                      state_of(serial.get()));
  Comparison comparison(
      bounds_of(plan, {.backend = context.world().backend_name(),
                       .share_parameters = parallel.trainer().pipeline().shares_parameters()}));
  steps = std::min(steps, parallel.trainer().total_steps());
  for (std::int64_t step = 1; step <= steps; ++step) {
    context.status().set_action(text("step ", step, ": verifying"));
    to_serial.run(shards_of(parallel.trainer().state()), state_of(serial.get()));
    const optim::NamedTensors before = parallel.weights();
    const Done& found = parallel.step();
    compare_replicas(comparison, step, context.world(), parallel.trainer());
    if (!serial) continue;
    const telemetry::OwnWork work(context.status(), text("verifying step ", step, " on one rank"));
    compare_step(comparison, step, before, found, serial->step());
  }
  return comparison;
}

}  // namespace trireme::train
