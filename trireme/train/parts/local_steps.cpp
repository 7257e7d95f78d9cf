#include "trireme/train/parts/internal/local_steps.h"

#include <ATen/ops/full.h>

#include <array>
#include <map>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/local/outer_optimizer.h"
#include "trireme/train/parts/internal/replica_rows.h"
#include "trireme/train/plan/internal/fixes.h"
#include "trireme/train/step/internal/all_parts.h"

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

const std::string kOwnPrefix = kPrefix + "own/";

void check_sites(const ParallelPlan& plan) {
  const Parallel& parallel = plan.config().parallel;
  const std::int64_t ranks = parallel.local_ranks, replicas = plan.num_replicas();
  Fixes fixes;
  for (std::int64_t fewer = std::min(ranks, replicas); fewer > 0; --fewer) {
    if (replicas % fewer == 0) fixes.push_back(set(&RunConfig::parallel, &Parallel::local_ranks, fewer));
  }
  reject_unless(replicas % ranks == 0, fixes, "parallel.local_ranks = ", ranks, " does not cut ", replicas,
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
  if (!plan.uses_local_sgd()) {
    const auto needs_sites = [&](bool found, const auto&... what) {
      reject_unless(!found, {replicas_together()}, what...,
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
  const auto reject_if = [&](bool found, const Fix& fix, const auto&... reason) {
    reject_unless(!found, {fix, replicas_together()}, "parallel.local_steps = ", parallel.local_steps, ": ",
                  reason...);
  };
  check_sites(plan);
  reject_if(parallel.local_delay >= parallel.local_steps,
            set(&RunConfig::parallel, &Parallel::local_delay, parallel.local_steps - 1),
            "parallel.local_delay = ", parallel.local_delay,
            " would have a part in flight when it is sent again; take fewer steps than a round has");
  reject_if(
      parallel.pipeline > 1 && (parallel.local_fragments > 1 || parallel.local_delay > 0),
      [](RunConfig& changed) {
        changed.parallel.local_fragments = 1;
        changed.parallel.local_delay = 0;
      },
      "stages of a pipeline send all of their weights at once, and wait; leave parallel.local_fragments "
      "and parallel.local_delay out");
}

namespace {

/// Local SGD: sites take independent steps, and average their models at intervals.
class LocalSgd final : public StepPart {
 public:
  explicit LocalSgd(const PartSetup& setup)
      : options_(outer_options(setup.plan.config())),
        sites_(*setup.groups.sites),
        objective_(setup.objective),
        context_(setup.context) {}

  void attach(const TrainerObjects& objects) override {
    objects_.emplace(objects);
    outer_ = std::make_unique<parallel::OuterOptimizer>(options_, sites_, objects.parameters.all,
                                                        objects.pipeline.buffers());
    for (const auto& [name, tensor] : outer_->common_state())
      parallel::count_as(MemoryKind::kOptimizer, tensor);
  }
  /// The link between sites determines the duration of an exchange.
  std::optional<ReportExchange> report_exchange() const override {
    return ReportExchange{.depth = 4, .bundling = Bundling::kByTime};
  }
  /// Sites that step independently divide by the count of their own part of the batch.
  void batch_arrived(Step& step, const data::StepBatch& batch) override {
    double own = 0;
    for (const data::Example& samples : batch.microbatches) own += objective_->count_all(samples);
    if (objects_->pipeline.has_last_stage()) step.report.own_count = own;
    if (steps_together(step)) return;
    at::Tensor sum = at::full({1}, own, at::kDouble);
    const double began_s = now_s();
    if (sites_.site) sites_.site->all_reduce(sum);
    waited_s_ += now_s() - began_s;
    step.count = sum.item<double>();
  }
  /// Sites count the steps that they take.
  bool asks_for_skips() const override { return true; }
  void gradients_ready(Step& step) override {
    if (steps_together(step)) outer_->add_gradients();
  }
  void updated(Step& step) override { outer_->after_step(step.report.step); }
  /// A site does not have the count of the whole batch, so it reports sums.
  void end_step(Step& step) override {
    step.completions.push_back(
        [count = step.count.value_or(0)](StepReport& report) { report.loss *= count; });
  }
  Completion completion() const override { return Completion::kCollective; }
  void synchronize() override {
    const telemetry::OwnWork work(context_.status(), "waiting for the models of all sites");
    outer_->synchronize();
  }
  void complete_state() override { outer_->settle(); }
  std::shared_ptr<void> evaluated_weights() override {
    auto shown = std::make_unique<parallel::OuterOptimizer::Shown>(*outer_);
    are_shown_ = true;
    return {shown.release(), [this](parallel::OuterOptimizer::Shown* values) {
              delete values;
              are_shown_ = false;
            }};
  }
  /// The model of all sites, as of the last synchronize().
  void change_model_state(StateParts& model) override {
    if (are_shown_) return;
    const std::map<std::string, at::Tensor> means(outer_->model().begin(), outer_->model().end());
    for (StatePart& part : model) {
      for (checkpoint::Shard& shard : part.shards) {
        if (const auto mean = means.find(shard.name); mean != means.end()) shard.tensor = mean->second;
      }
    }
  }
  void add_state(StateParts& state) override;
  void count(StepCounters& counters) const override {
    counters.comm_wait_s += waited_s_ + outer_->waited_s();
    counters.sent_to_sites_bytes += outer_->sent_bytes();
  }

 private:
  bool steps_together(const Step& step) const { return outer_->averages_gradients(step.report.step); }
  optim::NamedTensors own_state() const;
  Restoration restore(const StoredSizes& stored);

  const parallel::OuterOptions options_;
  parallel::SiteGroups sites_;
  const std::shared_ptr<const objective::Objective> objective_;
  comm::Context& context_;
  std::optional<TrainerObjects> objects_;
  std::unique_ptr<parallel::OuterOptimizer> outer_;
  double waited_s_ = 0;  ///< in all-reduces of counts
  bool are_shown_ = false;
};

/// State of each site: its model and the optimizer state.
optim::NamedTensors LocalSgd::own_state() const {
  optim::NamedTensors state = outer_->own_state();
  for (const auto& [name, tensor] : objects_->optimizer.state())
    state.emplace_back("optimizer/" + name, tensor);
  return state;
}

/// The common state of all sites besides the model. Each site's own model and optimizer state is a row.
void LocalSgd::add_state(StateParts& state) {
  for (StatePart& part : state) {
    if (part.prefix.empty()) continue;
    for (checkpoint::Shard& shard : part.shards) shard.replicas = checkpoint::Replicas::kFirstCounts;
  }
  StatePart common{.prefix = kPrefix};
  for (const auto& [name, tensor] : outer_->common_state())
    common.shards.push_back(checkpoint::whole_shard(kPrefix + name, tensor));
  keep_where_not_stored(common);
  StatePart own{.prefix = kOwnPrefix, .changes = ChangesIn::kForward};  // buffers change in the forward
  for (const auto& [name, tensor] : own_state()) {
    own.shards.push_back(
        row_shard(kOwnPrefix + name, tensor.detach().unsqueeze(0), outer_->site(), outer_->num_sites()));
    // Ranks of a site have different buffers: the first rank's are saved.
    own.shards.back().replicas = checkpoint::Replicas::kFirstCounts;
  }
  own.restore = [this](const StoredSizes& stored) { return restore(stored); };
  state.push_back(std::move(common));
  state.push_back(std::move(own));
}

/// Restores also from another number of sites: a site that takes several rows gets their mean. If the
/// checkpoint has no rows, all sites begin with its model.
Restoration LocalSgd::restore(const StoredSizes& stored) {
  const std::int64_t num_stored = stored_rows(kOwnPrefix, stored);
  if (num_stored == 0) return {.shards = {}, .finish = [this] { outer_->begin_with_model(); }};
  StoredRows rows;
  for (const auto& [name, tensor] : own_state())
    rows.add(kOwnPrefix + name, tensor.detach().unsqueeze(0), outer_->site() % num_stored,
             outer_->num_sites(), num_stored);
  return {.shards = rows.shards(), .finish = [this, rows] {
            rows.take_means();
            outer_->restored();
          }};
}

}  // namespace

std::unique_ptr<StepPart> make_local_sgd(const PartSetup& setup) {
  return setup.groups.sites ? std::make_unique<LocalSgd>(setup) : nullptr;
}

}  // namespace trireme::train
