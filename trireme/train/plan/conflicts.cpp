#include "trireme/train/plan/internal/conflicts.h"

#include <algorithm>

#include "trireme/base/text.h"
#include "trireme/train/config/internal/config_keys.h"
#include "trireme/train/plan/internal/cures.h"

namespace trireme::train {
namespace {

using Parallel = ParallelOptions;
using Train = TrainOptions;

const char* words_of(Property property) {
  switch (property) {
    case Property::kWholeModel:
      return "the whole model on each rank";
    case Property::kWholeLayers:
      return "whole layers on each rank";
    case Property::kWholeSequences:
      return "whole sequences on each rank";
    case Property::kReplicatedState:
      return "all parameters and optimizer state on each replica";
    case Property::kStateInMemory:
      return "parameters and optimizer state in memory";
    case Property::kUpdateAtEnd:
      return "one update of all stages at the end of a step";
    case Property::kUpdatesOnRanks:
      return "updates on the ranks";
    case Property::kCommonSteps:
      return "steps that all replicas take together";
    case Property::kGradientNorm:
      return "the norm of all gradients before the update";
    case Property::kJointSkips:
      return "a joint decision on skipped steps and the loss scale";
    case Property::kEveryUpdate:
      return "each update of all parameters at the end of its step";
    case Property::kMeanGradient:
      return "the mean of all gradients on a rank";
    case Property::kGradientsAtOnce:
      return "all gradients at the end of a reduction";
    case Property::kPlainGradients:
      return "gradients that travel as they were computed";
    case Property::kRankIndependentBits:
      return "bits that do not depend on the ranks";
  }
  return "";
}

struct Reason {
  Property property;
  const char* why;
};

struct Feature {
  const char* name = nullptr;  ///< for the table of the documentation; null: the key
  const char* key = nullptr;   ///< by which a configuration asks for it
  bool (*is_on)(const ParallelPlan& plan) = nullptr;
  const char* (*key_of)(const ParallelPlan& plan) = nullptr;  ///< where several keys do; null: `key`
  Cure (*off)() = nullptr;
  std::vector<Reason> needs = {}, lacks = {};

  /// "parallel.tensor = 2"
  std::string words(const ParallelPlan& plan) const {
    const RunConfig& config = plan.config();
    const ConfigKey& asked = find_key(config_key_table(config), key_of != nullptr ? key_of(plan) : key);
    return text(asked.name, " = ", to_toml(asked.get(config)));
  }
  std::string title() const { return name != nullptr ? name : text("`", key, "`"); }
};

/// An asynchronous schedule; the program need not be there.
bool updates_on_its_own_time(const ParallelPlan& plan) {
  return plan.config().parallel.pipeline > 1 && updates_under_way(plan.config());
}

/// In the order in which they are given up: earlier rows are turned off first.
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
       .off = []() -> Cure {
         return [](RunConfig& changed) {
           changed.train.non_finite = "stop";
           if (changed.train.precision == "fp16") changed.train.precision = "bf16";
         };
       },
       .needs = {{P::kJointSkips, "a step whose gradients are not finite is skipped on all ranks"}}},
      {.key = "train.ema_decay",
       .is_on = [](const ParallelPlan& plan) { return plan.config().train.ema_decay > 0; },
       .off = [] { return set(&RunConfig::train, &Train::ema_decay, 0.0); },
       .needs = {{P::kEveryUpdate, "the average takes in what each has made of the parameters"}}},
      {.key = "parallel.unused_parameters",
       .is_on = [](const ParallelPlan& plan) { return plan.config().parallel.unused_parameters != "error"; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::unused_parameters, "error"); },
       .needs = {{P::kGradientsAtOnce, "which gradients are missing is known there"}}},
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
       .off = []() -> Cure { return [](RunConfig& changed) { changed.offload = {}; }; },
       .lacks = {{P::kStateInMemory, "they live elsewhere and are brought part by part"}}},
      {.key = "parallel.compression",
       .is_on = [](const ParallelPlan& plan) { return plan.config().parallel.compression != "none"; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::compression, "none"); },
       .lacks = {{P::kPlainGradients, "whole gradients are encoded before they are reduced"},
                 {P::kRankIndependentBits, "it rounds gradients once for each rank"}}},
      {.name = "lossy `parallel.compression`",
       .key = "parallel.compression",
       .is_on =
           [](const ParallelPlan& plan) {
             return plan.rounding().is_lossy && !plan.served();  // servers check their codecs
           },
       .off = [] { return set(&RunConfig::parallel, &Parallel::compression, "none"); },
       .needs = {{P::kWholeLayers, "it is whole gradients that are compressed"},
                 {P::kWholeSequences, "sums over pieces of sequences are not compressed"},
                 {P::kUpdateAtEnd, "its residuals go from step to step"}},
       .lacks = {{P::kMeanGradient,
                  "what arrives in a step is not the mean of the gradients that were sent in it"}}},
      {.key = "parallel.weight_compression",
       .is_on = [](const ParallelPlan& plan) { return plan.rounds_weights(); },
       .off = [] { return set(&RunConfig::parallel, &Parallel::weight_compression, "none"); },
       .lacks = {{P::kRankIndependentBits,
                  "it rounds what is gathered, and where ranks gather nothing there is nothing to round"}}},
      {.key = "parallel.activation_compression",
       .is_on = [](const ParallelPlan& plan) { return plan.rounds_activations(); },
       .off = [] { return set(&RunConfig::parallel, &Parallel::activation_compression, "none"); },
       .lacks = {{P::kRankIndependentBits,
                  "it rounds what goes from rank to rank, and which values do depends on the ranks"}}},
      {.key = "parallel.zero",
       .is_on = [](const ParallelPlan& plan) { return plan.config().parallel.zero > 0; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::zero, std::int64_t{0}); },
       .lacks = {{P::kReplicatedState,
                  "it shares updates out among ranks, which gather the others' results"}}},
      {.key = "parallel.tensor",
       .is_on = [](const ParallelPlan& plan) { return plan.tensor_ranks() > 1; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::tensor, std::int64_t{1}); },
       .lacks = {{P::kWholeLayers, "it cuts layers"},
                 {P::kRankIndependentBits, "it adds up a layer's parts in an order of its own"}}},
      {.key = "parallel.context",
       .is_on = [](const ParallelPlan& plan) { return plan.context_ranks() > 1; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::context, std::int64_t{1}); },
       .lacks = {{P::kWholeSequences, "it cuts sequences"},
                 {P::kRankIndependentBits, "it adds up pieces of sequences in an order of its own"}}},
      {.key = "parallel.expert",
       .is_on = [](const ParallelPlan& plan) { return plan.expert_ranks() > 1; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::expert, std::int64_t{1}); },
       .needs = {{P::kReplicatedState, "replicas share out what all of them hold, and experts are not that"}},
       .lacks = {{P::kWholeLayers, "it shares the experts of layers out"},
                 {P::kRankIndependentBits, "it adds up gradients of experts in an order of its own"}}},
      {.key = "parallel.pipeline",
       .is_on = [](const ParallelPlan& plan) { return plan.config().parallel.pipeline > 1; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::pipeline, std::int64_t{1}); },
       .lacks = {{P::kWholeModel, "it cuts the model into stages on several ranks"}}},
      {.key = "parallel.chunks",
       .is_on = [](const ParallelPlan& plan) { return plan.config().parallel.chunks > 1; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::chunks, std::int64_t{0}); },
       .lacks = {{P::kWholeModel, "it cuts the model into stages"}}},
      {.name = "asynchronous `parallel.schedule`",
       .key = "parallel.schedule",
       .is_on = updates_on_its_own_time,
       .off = synchronous_schedule,
       .lacks = {{P::kUpdateAtEnd, "it updates each stage on its own time"},
                 {P::kGradientNorm,
                  "its stages update at different times, and the norm of all gradients together is never "
                  "known"},
                 {P::kJointSkips,
                  "its stages update at different times, and cannot leave a step out together"},
                 {P::kMeanGradient,
                  "its stages update at different times, and there is no gradient of all stages"},
                 {P::kRankIndependentBits, "it computes with older weights the more ranks there are"}}},
      {.key = "run.exact",
       .is_on = [](const ParallelPlan& plan) { return plan.exact(); },
       .off = [] { return set(&RunConfig::run, &RunOptions::exact, false); },
       .needs = {{P::kRankIndependentBits, "that is what it promises"}}},
      {.key = "parallel.local_steps",
       .is_on = [](const ParallelPlan& plan) { return plan.trains_apart(); },
       .off = replicas_together,
       .needs = {{P::kUpdatesOnRanks, "sites take steps of their own"},
                 {P::kUpdateAtEnd, "rounds are counted in steps of the whole model"},
                 {P::kWholeLayers, "sites hold whole layers"},
                 {P::kWholeSequences, "sites hold whole sequences"},
                 {P::kReplicatedState, "each rank of a site needs all of it for outer steps"},
                 {P::kPlainGradients, "sites average weights, and not gradients in every step"},
                 {P::kStateInMemory, "outer steps need it there"}},
       .lacks = {{P::kJointSkips, "sites would not leave out the same steps"},
                 {P::kEveryUpdate, "what is evaluated is the mean of the sites"},
                 {P::kMeanGradient, "sites take steps of their own, and there is no mean of their gradients"},
                 {P::kCommonSteps, "sites do not add up gradients of one batch"},
                 {P::kRankIndependentBits, "what sites learn depends on how many there are"}}},
      {.key = "parallel.priority",
       .is_on = [](const ParallelPlan& plan) { return plan.config().parallel.priority != "none"; },
       .off = [] { return set(&RunConfig::parallel, &Parallel::priority, "none"); },
       .needs = {{P::kUpdatesOnRanks, "each layer's update is made when it is asked for"},
                 {P::kWholeModel, "stages of a step wait for each other"},
                 {P::kWholeLayers, "ranks of a cut layer update together"},
                 {P::kWholeSequences, "ranks of a cut sequence compute together"},
                 {P::kReplicatedState, "each layer waits for its own update alone"},
                 {P::kCommonSteps, "gradients are averaged in every step"},
                 {P::kPlainGradients, "slices are reduced as they are"},
                 {P::kStateInMemory, "updates are made parameter by parameter"}},
       .lacks = {{P::kGradientNorm,
                  "the norm of all gradients is known when the last one is there, and no layer could begin "
                  "before"},
                 {P::kJointSkips, "whether a step is left out is decided when the last gradient is there"},
                 {P::kEveryUpdate, "updates of a step are made one by one, when layers ask for them"},
                 {P::kGradientsAtOnce,
                  "which gradients there are is known at the end of a reduction alone, and it has none"},
                 {P::kMeanGradient, "all gradients are never there at once"},
                 {P::kRankIndependentBits, "it adds gradients up slice by slice, not along one tree"}}},
      {.name = "`parallel.mode = \"ps\"`",
       .key = "parallel.mode",
       .is_on = [](const ParallelPlan& plan) { return plan.served(); },
       .off = [] { return set(&RunConfig::parallel, &Parallel::mode, "all-reduce"); },
       .needs = {{P::kWholeModel, "each rank over servers computes all of it"},
                 {P::kWholeLayers, "each rank over servers computes all of them"},
                 {P::kWholeSequences, "each rank over servers reads samples of its own"},
                 {P::kReplicatedState, "servers hold what ranks would share out"},
                 {P::kStateInMemory, "what servers hold is not on the ranks"}},
       .lacks = {{P::kUpdatesOnRanks, "servers update, with priorities of their own"},
                 {P::kGradientNorm, "no rank has the sum of all gradients, of which the norm would be"},
                 {P::kJointSkips, "ranks over servers cannot decide together on a step"},
                 {P::kEveryUpdate, "ranks do not see every update, of which an average would be"},
                 {P::kGradientsAtOnce, "servers update whole tables, and need every gradient"},
                 {P::kMeanGradient, "servers add gradients up, and no rank has their mean"},
                 {P::kRankIndependentBits, "servers add gradients up rank by rank, not along one tree"}}},
      {.name = "gradient noise: `train.noise_scale_every_steps`",
       .key = "train.noise_scale_every_steps",
       .is_on = [](const ParallelPlan& plan) { return plan.config().train.noise_scale_every_steps > 0; },
       .off = [] { return set(&RunConfig::train, &TrainOptions::noise_scale_every_steps, 0); },
       .needs = {{P::kMeanGradient, "the noise is told by it and the micro-batches' own gradients"},
                 {P::kWholeLayers, "a micro-batch's own gradient is whole on no rank otherwise"},
                 {P::kWholeSequences, "a micro-batch's own gradient is whole on no rank otherwise"}},
       .lacks = {{P::kRankIndependentBits, "squares are added up rank by rank, not along one tree"}}},
      {.name = "`data.balance = \"dynamic\"`",
       .key = "data.balance",
       .is_on = [](const ParallelPlan& plan) { return plan.config().data.balance == "dynamic"; },
       .off = [] { return set(&RunConfig::data, &data::DataOptions::balance, "count"); },
       .needs =
           {{P::kUpdateAtEnd,
             "a schedule that keeps micro-batches of several steps under way has to know all their sizes "
             "ahead"},
            {P::kCommonSteps, "a replica is idle where it waits for a slower one"}},
       .lacks = {{P::kRankIndependentBits, "bits depend on which samples are added up together"}}},
      {.name = "`ps.staleness` other than 0",
       .key = "ps.staleness",
       .is_on = [](const ParallelPlan& plan) { return plan.ranks_drift(); },
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
        Cures cures = {needing->off(), lacking->off()};
        if (lacking < needing) std::swap(cures[0], cures[1]);
        throw Refusal(text(needing->words(plan), " needs ", words_of(need.property), " (", need.why, "); ",
                           lacking->words(plan), ": ", lack->why, "; leave one of the two out"),
                      cures);
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
