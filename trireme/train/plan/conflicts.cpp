#include "trireme/train/plan/internal/conflicts.h"

#include <algorithm>

#include "trireme/base/text.h"
#include "trireme/train/config/batch_ramp.h"
#include "trireme/train/config/internal/config_keys.h"
#include "trireme/train/plan/internal/fixes.h"

namespace trireme::train {
namespace {

using Parallel = ParallelOptions;
using Train = TrainOptions;

const char* words_of(Property property) {
  switch (property) {
    case Property::kWholeModel:
      return "the whole model on each rank";
    case Property::kWholeLayers:
      return "unsharded layers on each rank";
    case Property::kWholeSequences:
      return "unsharded sequences on each rank";
    case Property::kReplicatedState:
      return "all parameters and optimizer state on each replica";
    case Property::kStateInMemory:
      return "parameters and optimizer state in memory";
    case Property::kUpdateAtEnd:
      return "one update of all stages at the end of a step";
    case Property::kUpdatesOnRanks:
      return "updates on the ranks";
    case Property::kCommonSteps:
      return "synchronous steps of all replicas";
    case Property::kGradientNorm:
      return "the norm of all gradients before the update";
    case Property::kJointSkips:
      return "a joint decision on skipped steps and the loss scale";
    case Property::kEveryUpdate:
      return "all updates of a step at its end";
    case Property::kMeanGradient:
      return "the mean of all gradients on a rank";
    case Property::kGradientsAtOnce:
      return "all gradients at the end of a reduction";
    case Property::kPlainGradients:
      return "uncompressed gradients";
    case Property::kFixedWeights:
      return "weights at fixed addresses";
    case Property::kDeviceLayers:
      return "layers without work of the host";
    case Property::kRankIndependentBits:
      return "results independent of the number of ranks";
  }
  return "";
}

struct Reason {
  Property property;
  const char* why;
};

struct Feature {
  const char* name = nullptr;  ///< for the table of the documentation; null: the key
  const char* key = nullptr;   ///< that enables it
  bool (*is_on)(const ParallelPlan& plan) = nullptr;
  const char* (*key_of)(const ParallelPlan& plan) = nullptr;  ///< if several keys can enable it; null: `key`
  Fix (*off)() = nullptr;
  std::vector<Reason> needs = {}, lacks = {};

  /// "parallel.tensor = 2"
  std::string words(const ParallelPlan& plan) const {
    const RunConfig& config = plan.config();
    const ConfigKey& asked = find_key(config_key_table(config), key_of != nullptr ? key_of(plan) : key);
    return text(asked.name, " = ", to_toml(asked.get(config)));
  }
  std::string title() const { return name != nullptr ? name : text("`", key, "`"); }
};

/// Whether the schedule is asynchronous; callable before the program exists.
bool updates_on_its_own_time(const ParallelPlan& plan) {
  return plan.config().parallel.pipeline > 1 && updates_under_way(plan.config());
}

bool recomputes(const ParallelPlan& plan) {
  const TrainOptions& train = plan.config().train;
  return plan.config().parallel.recompute || !train.recompute_layers.empty() ||
         !train.activation_budget.empty();
}

/// In the order in which fixes turn features off.
const std::vector<Feature>& features() {
  using P = Property;
  static const std::vector<Feature> rows = {
      {.key = "train.clip_norm",
       .is_on = [](const ParallelPlan& plan) { return plan.config().train.clip_norm > 0; },
       .off = [] { return set(&RunConfig::train, &Train::clip_norm, 0.0); },
       .needs = {{P::kGradientNorm, "all gradients are scaled by one factor"}}},
      {.name = "`train.non_finite = \"skip\"`, fp16",
       .key = "train.non_finite",
       .is_on = [](const ParallelPlan& plan) { return plan.skips_non_finite(); },
       .key_of =
           [](const ParallelPlan& plan) {
             return plan.precision().scales_loss ? "train.precision" : "train.non_finite";
           },
       .off = []() -> Fix {
         return [](RunConfig& changed) {
           changed.train.non_finite = "stop";
           if (changed.train.precision == "fp16") changed.train.precision = "bf16";
         };
       },
       .needs = {{P::kJointSkips, "a step whose gradients are not finite is skipped on all ranks"}}},
      {.key = "train.ema_decay",
       .is_on = [](const ParallelPlan& plan) { return plan.config().train.ema_decay > 0; },
       .off = [] { return set(&RunConfig::train, &Train::ema_decay, 0.0); },
       .needs = {{P::kEveryUpdate, "the average includes the result of every update"}}},
      {.key = "parallel.unused_parameters",
       .is_on = [](const ParallelPlan& plan) { return plan.config().parallel.unused_parameters != "error"; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::unused_parameters, "error"); },
       .needs = {{P::kGradientsAtOnce, "missing gradients are known only then"}}},
      {.name = "`lr.schedule = \"reduce_on_plateau\"`",
       .key = "lr.schedule",
       .is_on =
           [](const ParallelPlan& plan) {
             return plan.config().learning_rate.schedule == "reduce_on_plateau";
           },
       .off =
           [] { return set(&RunConfig::learning_rate, &optim::LearningRateOptions::schedule, "constant"); },
       .lacks = {{P::kRankIndependentBits,
                  "it follows the loss of evaluations, whose batches depend on the ranks"}}},
      {.name = "`offload.optimizer`, `offload.parameters`",
       .key = "offload.optimizer",
       .is_on = [](const ParallelPlan& plan) { return plan.offloads(); },
       .key_of =
           [](const ParallelPlan& plan) {
             return plan.offloads_state() ? "offload.optimizer" : "offload.parameters";
           },
       .off = []() -> Fix { return [](RunConfig& changed) { changed.offload = {}; }; },
       .lacks = {{P::kStateInMemory, "they are offloaded and loaded part by part"}}},
      {.key = "parallel.compression",
       .is_on = [](const ParallelPlan& plan) { return plan.config().parallel.compression != "none"; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::compression, "none"); },
       .lacks = {{P::kPlainGradients, "whole gradients are encoded before they are reduced"},
                 {P::kRankIndependentBits, "it rounds the gradients of each rank separately"}}},
      {.name = "lossy `parallel.compression`",
       .key = "parallel.compression",
       .is_on =
           [](const ParallelPlan& plan) {
             return plan.rounding().is_lossy && !plan.uses_parameter_server();  // servers check their codecs
           },
       .off = [] { return set(&RunConfig::parallel, &Parallel::compression, "none"); },
       .needs = {{P::kWholeLayers, "codecs need unsharded gradients"},
                 {P::kWholeSequences, "sums over shards of sequences are not compressed"},
                 {P::kUpdateAtEnd, "its residuals carry over to the next step"}},
       .lacks = {{P::kMeanGradient,
                  "the received gradient of a step is not the mean of the gradients of that step"}}},
      {.key = "parallel.weight_compression",
       .is_on = [](const ParallelPlan& plan) { return plan.rounds_weights(); },
       .off = [] { return set(&RunConfig::parallel, &Parallel::weight_compression, "none"); },
       .lacks = {{P::kRankIndependentBits,
                  "it rounds gathered weights, and ranks that gather nothing round nothing"}}},
      {.key = "parallel.activation_compression",
       .is_on = [](const ParallelPlan& plan) { return plan.rounds_activations(); },
       .off = [] { return set(&RunConfig::parallel, &Parallel::activation_compression, "none"); },
       .lacks = {{P::kRankIndependentBits,
                  "it rounds values sent between ranks, and these depend on the number of ranks"}}},
      {.key = "parallel.zero",
       .is_on = [](const ParallelPlan& plan) { return plan.config().parallel.zero > 0; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::zero, std::int64_t{0}); },
       .lacks = {{P::kReplicatedState, "it shards updates over ranks, which gather the results"}}},
      {.name = "`parallel.zero = 3`",
       .key = "parallel.zero",
       .is_on = [](const ParallelPlan& plan) { return plan.config().parallel.zero == 3; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::zero, std::int64_t{2}); },
       .lacks = {{P::kFixedWeights, "it gathers weights before each use and frees them afterwards"}}},
      {.name = "`train.recompute_layers`, `train.activation_budget`, `parallel.recompute`",
       .key = "train.recompute_layers",
       .is_on = recomputes,
       .key_of =
           [](const ParallelPlan& plan) {
             if (plan.config().parallel.recompute) return "parallel.recompute";
             return plan.config().train.activation_budget.empty() ? "train.recompute_layers"
                                                                  : "train.activation_budget";
           },
       .off = []() -> Fix {
         return [](RunConfig& changed) {
           changed.parallel.recompute = false;
           changed.train.recompute_layers.clear();
           changed.train.activation_budget.clear();
         };
       },
       .lacks = {{P::kDeviceLayers, "the host restores random states before it runs a forward again"}}},
      {.key = "offload.activations",
       .is_on = [](const ParallelPlan& plan) { return plan.offloads_activations(); },
       .off = [] { return set(&RunConfig::offload, &optim::OffloadOptions::activations, "none"); },
       .lacks = {{P::kDeviceLayers, "the host copies activations while layers compute"}}},
      {.key = "parallel.tensor",
       .is_on = [](const ParallelPlan& plan) { return plan.tensor_ranks() > 1; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::tensor, std::int64_t{1}); },
       .lacks = {{P::kWholeLayers, "it shards layers"},
                 {P::kDeviceLayers, "the host starts the collectives inside layers"},
                 {P::kRankIndependentBits, "it adds partial sums of a layer in a different order"}}},
      {.key = "parallel.context",
       .is_on = [](const ParallelPlan& plan) { return plan.context_ranks() > 1; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::context, std::int64_t{1}); },
       .lacks = {{P::kWholeSequences, "it shards sequences"},
                 {P::kDeviceLayers, "the host starts the collectives inside layers"},
                 {P::kRankIndependentBits, "it adds partial sums of sequences in a different order"}}},
      {.key = "parallel.expert",
       .is_on = [](const ParallelPlan& plan) { return plan.expert_ranks() > 1; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::expert, std::int64_t{1}); },
       .needs = {{P::kReplicatedState, "ZeRO shards replicated state, and experts are not replicated"}},
       .lacks = {{P::kWholeLayers, "it shards the experts of layers"},
                 {P::kRankIndependentBits, "it adds gradients of experts in a different order"}}},
      {.key = "parallel.pipeline",
       .is_on = [](const ParallelPlan& plan) { return plan.config().parallel.pipeline > 1; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::pipeline, std::int64_t{1}); },
       .lacks = {{P::kWholeModel, "it splits the model into stages on several ranks"}}},
      {.key = "parallel.chunks",
       .is_on = [](const ParallelPlan& plan) { return plan.config().parallel.chunks > 1; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::chunks, std::int64_t{0}); },
       .lacks = {{P::kWholeModel, "it splits the model into stages"}}},
      {.name = "asynchronous `parallel.schedule`",
       .key = "parallel.schedule",
       .is_on = updates_on_its_own_time,
       .off = synchronous_schedule,
       .lacks = {{P::kUpdateAtEnd, "it updates stages asynchronously"},
                 {P::kFixedWeights, "its stages compute with several versions of their weights"},
                 {P::kGradientNorm,
                  "its stages update at different times, and the norm of all gradients together is never "
                  "known"},
                 {P::kJointSkips, "its stages update at different times, and cannot skip a step together"},
                 {P::kMeanGradient,
                  "its stages update at different times, and there is no gradient of all stages"},
                 {P::kRankIndependentBits, "it computes with older weights the more ranks there are"}}},
      {.key = "run.exact",
       .is_on = [](const ParallelPlan& plan) { return plan.exact(); },
       .off = [] { return set(&RunConfig::run, &RunOptions::exact, false); },
       .needs = {{P::kRankIndependentBits, "this is its guarantee"}}},
      {.key = "parallel.local_steps",
       .is_on = [](const ParallelPlan& plan) { return plan.uses_local_sgd(); },
       .off = replicas_together,
       .needs = {{P::kUpdatesOnRanks, "sites take local steps"},
                 {P::kUpdateAtEnd, "rounds are counted in steps of the whole model"},
                 {P::kWholeLayers, "sites hold unsharded layers"},
                 {P::kWholeSequences, "sites hold unsharded sequences"},
                 {P::kReplicatedState, "each rank of a site needs all of it for outer steps"},
                 {P::kPlainGradients, "sites average weights, and not gradients in every step"},
                 {P::kStateInMemory, "outer steps need it in memory"}},
       .lacks = {{P::kJointSkips, "sites would not skip the same steps"},
                 {P::kEveryUpdate, "evaluations use the mean of the sites"},
                 {P::kMeanGradient, "sites take local steps, and there is no mean of their gradients"},
                 {P::kCommonSteps, "sites do not sum gradients of one batch"},
                 {P::kRankIndependentBits, "the result depends on the number of sites"}}},
      {.key = "parallel.priority",
       .is_on = [](const ParallelPlan& plan) { return plan.config().parallel.priority != "none"; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::priority, "none"); },
       .needs = {{P::kUpdatesOnRanks, "each layer is updated on demand"},
                 {P::kWholeModel, "the stages of a step wait for each other"},
                 {P::kWholeLayers, "the ranks of a sharded layer update together"},
                 {P::kWholeSequences, "the ranks of a sharded sequence compute together"},
                 {P::kReplicatedState, "each layer waits only for its own update"},
                 {P::kCommonSteps, "gradients are averaged in every step"},
                 {P::kPlainGradients, "slices are reduced uncompressed"},
                 {P::kStateInMemory, "parameters are updated one by one"}},
       .lacks =
           {{P::kGradientNorm,
             "the norm of all gradients is known only after the last one, and no layer could start earlier"},
            {P::kDeviceLayers, "each layer waits on the host for its own update"},
            {P::kJointSkips, "whether a step is skipped is known only after the last gradient"},
            {P::kEveryUpdate, "the updates of a step run one by one, on demand of the layers"},
            {P::kGradientsAtOnce,
             "missing gradients are known only at the end of a reduction, and it has none"},
            {P::kMeanGradient, "the gradients are never complete at one time"},
            {P::kRankIndependentBits, "it sums gradients slice by slice, not along one tree"}}},
      {.name = "`parallel.mode = \"ps\"`",
       .key = "parallel.mode",
       .is_on = [](const ParallelPlan& plan) { return plan.uses_parameter_server(); },
       .off = [] { return set(&RunConfig::parallel, &Parallel::mode, "all-reduce"); },
       .needs = {{P::kWholeModel, "each rank with a parameter server computes the whole model"},
                 {P::kWholeLayers, "each rank with a parameter server computes whole layers"},
                 {P::kWholeSequences, "each rank with a parameter server reads different samples"},
                 {P::kReplicatedState, "the servers hold the state that would be sharded"},
                 {P::kStateInMemory, "the state is on the servers, not on the ranks"}},
       .lacks = {{P::kUpdatesOnRanks, "servers update, with their own priorities"},
                 {P::kDeviceLayers, "each layer waits on the host for its values"},
                 {P::kGradientNorm, "no rank has the sum of all gradients, whose norm is needed"},
                 {P::kJointSkips, "ranks with a parameter server cannot decide together on a step"},
                 {P::kEveryUpdate, "ranks do not see every update"},
                 {P::kGradientsAtOnce, "servers update whole tables, and need every gradient"},
                 {P::kMeanGradient, "servers sum gradients, and no rank has their mean"},
                 {P::kRankIndependentBits, "servers sum gradients rank by rank, not along one tree"}}},
      {.name = "gradient noise: `train.noise_scale_every_steps`",
       .key = "train.noise_scale_every_steps",
       .is_on = [](const ParallelPlan& plan) { return plan.config().train.noise_scale_every_steps > 0; },
       .off = [] { return set(&RunConfig::train, &TrainOptions::noise_scale_every_steps, 0); },
       .needs = {{P::kMeanGradient, "the noise is computed from it and the micro-batches' gradients"},
                 {P::kWholeLayers, "otherwise no rank has the complete gradient of a micro-batch"},
                 {P::kWholeSequences, "otherwise no rank has the complete gradient of a micro-batch"}},
       .lacks = {{P::kRankIndependentBits, "squares are summed rank by rank, not along one tree"}}},
      {.name = "`checkpoint.interval = \"auto\"`",
       .key = "checkpoint.interval",
       .is_on = [](const ParallelPlan& plan) { return plan.config().checkpoint.interval != "steps"; },
       .off = [] { return set(&RunConfig::checkpoint, &CheckpointOptions::interval, "steps"); },
       .needs = {{P::kUpdateAtEnd, "a save would drain the pipeline at a measured time"},
                 {P::kEveryUpdate, "a save would synchronize the ranks at a measured time"}}},
      {.name = "`data.balance = \"dynamic\"`",
       .key = "data.balance",
       .is_on = [](const ParallelPlan& plan) { return plan.config().data.balance == "dynamic"; },
       .off = [] { return set(&RunConfig::data, &data::DataOptions::balance, "count"); },
       .needs =
           {{P::kUpdateAtEnd,
             "a schedule with micro-batches of several steps in flight needs all their sizes in advance"},
            {P::kCommonSteps, "a replica is idle while it waits for a slower one"}},
       .lacks = {{P::kRankIndependentBits, "bits depend on which samples are summed together"}}},
      {.name = "`train.batch_ramp_by = \"noise\"`",
       .key = "train.batch_ramp_by",
       .is_on = [](const ParallelPlan& plan) { return grows_with_noise(plan.config().train); },
       .off = []() -> Fix { return [](RunConfig& changed) { changed.train = without_ramp(changed.train); }; },
       .needs = {{P::kUpdateAtEnd, "the batch grows after a step of all stages"},
                 {P::kCommonSteps, "the batch grows on all ranks at the same step"}}},
      {.name = "`train.graph = \"on\"`",
       .key = "train.graph",
       .is_on = [](const ParallelPlan& plan) { return plan.config().train.graph == "on"; },
       .off = [] { return set(&RunConfig::train, &TrainOptions::graph, "auto"); },
       .needs = {{P::kFixedWeights, "a graph reads them where they were when it was captured"},
                 {P::kDeviceLayers, "a replay repeats the work of the device alone"}}},
      {.key = "train.adapt",
       .is_on = [](const ParallelPlan& plan) { return plan.config().train.adapt; },
       .off = [] { return set(&RunConfig::train, &TrainOptions::adapt, false); },
       .needs = {{P::kUpdateAtEnd, "changes hold from one step of all stages on"},
                 {P::kCommonSteps, "all ranks change at the same step"}},
       .lacks = {{P::kRankIndependentBits, "it follows measured times"}}},
      {.name = "`ps.staleness` other than 0",
       .key = "ps.staleness",
       .is_on = [](const ParallelPlan& plan) { return plan.is_stale_synchronous(); },
       .off = [] { return set(&RunConfig::served, &parallel::ServedOptions::staleness, std::int64_t{0}); },
       .lacks = {{P::kCommonSteps, "ranks do not wait for each other, and none is idle for a slower one"}}},
  };
  return rows;
}

const Reason* find(const std::vector<Reason>& reasons, Property property) {
  const auto found = std::ranges::find(reasons, property, &Reason::property);
  return found == reasons.end() ? nullptr : &*found;
}

}  // namespace

bool lacks(const ParallelPlan& plan, Property property) {
  return std::ranges::any_of(features(), [&](const Feature& feature) {
    return find(feature.lacks, property) != nullptr && feature.is_on(plan);
  });
}

void check_conflicts(const ParallelPlan& plan) {
  std::vector<const Feature*> on;
  for (const Feature& feature : features()) {
    if (feature.is_on(plan)) on.push_back(&feature);
  }
  for (const Feature* needing : on) {
    for (const Reason& need : needing->needs) {
      for (const Feature* lacking : on) {
        const Reason* lack = find(lacking->lacks, need.property);
        if (lack == nullptr) continue;
        Fixes fixes = {needing->off(), lacking->off()};
        if (lacking < needing) std::swap(fixes[0], fixes[1]);
        throw PlanError(text(needing->words(plan), " needs ", words_of(need.property), " (", need.why, "); ",
                             lacking->words(plan), ": ", lack->why, "; leave one of the two out"),
                        fixes);
      }
    }
  }
}

std::vector<Conflict> all_conflicts() {
  std::vector<Conflict> all;
  for (const Feature& needing : features()) {
    for (const Reason& need : needing.needs) {
      for (const Feature& lacking : features()) {
        const Reason* lack = find(lacking.lacks, need.property);
        if (lack == nullptr) continue;
        all.push_back({.needing = needing.title(),
                       .need = text(words_of(need.property), ": ", need.why),
                       .lacking = lacking.title(),
                       .lack = lack->why});
      }
    }
  }
  return all;
}

}  // namespace trireme::train
