#include "trireme/train/internal/local_steps.h"

#include <array>
#include <set>

#include "trireme/base/error.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/train/internal/cures.h"
#include "trireme/train/trainer.h"

namespace trireme::train {
namespace {

using Parallel = ParallelOptions;

struct OuterRow {
  const char* name;
  bool has_momentum;
  bool nesterov;
};
constexpr std::array kOuterOptimizers = {OuterRow{"average", false, false}, OuterRow{"momentum", true, false},
                                         OuterRow{"nesterov", true, true}};

parallel::OuterOptions outer_options(const RunConfig& config) {
  const Parallel& parallel = config.parallel;
  parallel::OuterOptions options{.every = parallel.local_steps,
                                 .from = parallel.local_from_step,
                                 .fragments = static_cast<int>(parallel.local_fragments),
                                 .delay = parallel.local_delay,
                                 .mixing = parallel.local_mixing};
  for (const OuterRow& row : kOuterOptimizers) {
    if (parallel.outer_optimizer != row.name || !row.has_momentum) continue;
    options.optimizer.lr = parallel.outer_lr;
    options.optimizer.momentum = parallel.outer_momentum;
    options.optimizer.nesterov = row.nesterov;
  }
  return options;
}

const std::string kPrefix = text(checkpoint::kOptimizerPrefix, "sites/");

std::string own_name(const std::string& name) { return kPrefix + "own/" + name; }

void check_sites(const ParallelPlan& plan) {
  const Parallel& parallel = plan.config().parallel;
  const std::int64_t ranks = parallel.local_ranks, replicas = plan.num_replicas();
  Cures cures;
  for (std::int64_t fewer = std::min(ranks, replicas); fewer > 0; --fewer) {
    if (replicas % fewer == 0) cures.push_back(set(&RunConfig::parallel, &Parallel::local_ranks, fewer));
  }
  refuse_unless(replicas % ranks == 0, cures, "parallel.local_ranks = ", ranks, " does not cut ", replicas,
                replicas == 1 ? " replica" : " replicas", " into sites: they can be cut into sites of ",
                divisors_in_words(replicas));
}

}  // namespace

std::vector<std::string> outer_optimizer_names() {
  std::vector<std::string> names;
  for (const OuterRow& row : kOuterOptimizers) names.emplace_back(row.name);
  return names;
}

void check_local_steps(const ParallelPlan& plan) {
  const RunConfig& config = plan.config();
  const Parallel& parallel = config.parallel;
  if (!plan.trains_apart()) {
    const auto needs_sites = [&](bool found, const auto&... what) {
      refuse_unless(!found, {replicas_together()}, what...,
                    " is for sites that take steps of their own: set parallel.local_steps, or leave it out");
    };
    needs_sites(parallel.local_ranks > 1, "parallel.local_ranks = ", parallel.local_ranks);
    needs_sites(parallel.local_from_step > 0, "parallel.local_from_step = ", parallel.local_from_step);
    needs_sites(parallel.local_fragments > 1, "parallel.local_fragments = ", parallel.local_fragments);
    needs_sites(parallel.local_delay > 0, "parallel.local_delay = ", parallel.local_delay);
    needs_sites(parallel.outer_optimizer != "average", "parallel.outer_optimizer = \"",
                parallel.outer_optimizer, "\"");
    return;
  }
  const auto refuse_if = [&](bool found, const Cure& cure, const auto&... reason) {
    refuse_unless(!found, {cure, replicas_together()}, "parallel.local_steps = ", parallel.local_steps, ": ",
                  reason...);
  };
  check_sites(plan);
  refuse_if(parallel.local_delay >= parallel.local_steps,
            set(&RunConfig::parallel, &Parallel::local_delay, parallel.local_steps - 1),
            "parallel.local_delay = ", parallel.local_delay,
            " would have a part travel when it is sent anew; take fewer steps than a round has");
  refuse_if(plan.served(), set(&RunConfig::parallel, &Parallel::mode, "all-reduce"),
            "parallel.mode = \"ps\" has servers update, and sites would have nothing of their own");
  refuse_if(plan.asynchronous(), synchronous_schedule(), "parallel.schedule = \"", parallel.schedule,
            "\" updates each stage on its own time, and rounds are counted in steps of the whole model");
  refuse_if(
      parallel.pipeline > 1 && (parallel.local_fragments > 1 || parallel.local_delay > 0),
      [](RunConfig& changed) {
        changed.parallel.local_fragments = 1;
        changed.parallel.local_delay = 0;
      },
      "stages of a pipeline send all of their weights at once, and wait; leave parallel.local_fragments "
      "and parallel.local_delay out");
  refuse_if(parallel.tensor > 1, set(&RunConfig::parallel, &Parallel::tensor, 1),
            "parallel.tensor = ", parallel.tensor, ": sites hold whole layers");
  refuse_if(parallel.context > 1, set(&RunConfig::parallel, &Parallel::context, 1),
            "parallel.context = ", parallel.context, ": sites hold whole sequences");
  refuse_if(parallel.zero > 0, set(&RunConfig::parallel, &Parallel::zero, 0),
            "parallel.zero = ", parallel.zero,
            " shares weights out, and each rank of a site needs all of them for outer steps");
  refuse_if(parallel.compression != "none", set(&RunConfig::parallel, &Parallel::compression, "none"),
            "parallel.compression = \"", parallel.compression,
            "\" is for gradients that travel in every step");
  refuse_if(
      plan.skips_non_finite(),
      [](RunConfig& changed) {
        changed.train.non_finite = "stop";
        if (changed.train.precision == "fp16") changed.train.precision = "bf16";
      },
      "train.precision = \"", config.train.precision, "\" with train.non_finite = \"",
      config.train.non_finite, "\" leaves steps out, and sites would not leave out the same");
  refuse_if(config.train.ema_decay > 0, set(&RunConfig::train, &TrainOptions::ema_decay, 0.0),
            "train.ema_decay = ", config.train.ema_decay,
            " averages over steps, and what is evaluated is the mean of the sites");
  refuse_if(plan.exact(), set(&RunConfig::run, &RunOptions::exact, false),
            "run.exact = true: what sites learn depends on how many there are");
  refuse_if(
      plan.offloads(), [](RunConfig& changed) { changed.offload = {}; },
      "offload: outer steps need the weights in memory");
}

std::unique_ptr<parallel::OuterSteps> outer_steps_for(const ParallelPlan& plan, const PlanGroups& groups,
                                                      const optim::NamedTensors& parameters,
                                                      const optim::NamedTensors& buffers) {
  if (!groups.sites) return nullptr;
  return std::make_unique<parallel::OuterSteps>(outer_options(plan.config()), *groups.sites, parameters,
                                                buffers);
}

checkpoint::Shards site_shards(Trainer& trainer) {
  const parallel::OuterSteps* outer = trainer.outer_steps();
  checkpoint::Shards shards;
  if (outer == nullptr) return shards;
  for (const auto& [name, tensor] : outer->common_state())
    shards.push_back(checkpoint::whole_shard(kPrefix + name, tensor));
  for (const auto& [name, tensor] : trainer.own_state()) {
    shards.push_back(
        row_shard(own_name(name), tensor.detach().unsqueeze(0), outer->site(), outer->num_sites()));
    // Forwards change buffers, and ranks of a site have buffers of their own: those of the first are copied.
    shards.back().replicas = checkpoint::Replicas::kFirstCounts;
  }
  return shards;
}

KeptBySites::KeptBySites(Trainer& trainer, comm::Context& context, const std::filesystem::path& checkpoint)
    : outer_(trainer.outer_steps()) {
  if (outer_ == nullptr) return;
  const std::int64_t num_stored = stored_rows(kPrefix, context, checkpoint);
  if (num_stored == 0) return;
  are_there_ = true;
  for (const auto& [name, tensor] : outer_->common_state())
    shards_.push_back(checkpoint::whole_shard(kPrefix + name, tensor));
  for (const auto& [name, tensor] : trainer.own_state())
    rows_.add(own_name(name), tensor.detach().unsqueeze(0), outer_->site() % num_stored, outer_->num_sites(),
              num_stored);
  shards_.insert(shards_.end(), rows_.shards().begin(), rows_.shards().end());
}

void KeptBySites::take_up() const {
  if (outer_ == nullptr) return;
  if (!are_there_) return outer_->begin_with_model();
  rows_.take_means();
  outer_->restored();
}

}  // namespace trireme::train
