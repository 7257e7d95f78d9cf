#include "trireme/train/parts/internal/exact_run.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/base/text.h"
#include "trireme/parallel/data/exact_sum.h"
#include "trireme/train/plan/internal/fixes.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {

namespace {

/// Sums over micro-batches follow one tree (PipelineOptions::exact). Random numbers belong to a micro-batch
/// and a layer. The norm is that of whole gradients, parameter by parameter.
class ExactSums final : public StepPart {
 public:
  /// Sets the number of libtorch threads of this process for good: the split of an operation over threads
  /// determines the order of its sums.
  explicit ExactSums(const PartSetup& setup)
      : replicas_(setup.groups.replicas),
        seed_(static_cast<std::uint64_t>(setup.plan.config().run.seed)),
        num_microbatches_(setup.plan.num_microbatches()) {
    at::set_num_threads(setup.plan.config().comm.torch_threads);
  }

  /// Seeds the generator before each layer by run, step, micro-batch and the layer's place.
  void configure(PipelineSetup& setup) override {
    for (std::size_t i = 0; i < setup.layers.size(); ++i) {
      setup.layers[i].forward = [inner = std::move(setup.layers[i].forward), i, this](const Fields& inputs) {
        at::manual_seed(Random(seed_, Random::key_of("exact"), step_, microbatch_, i).bits());
        return inner(inputs);
      };
    }
    setup.options.exact = true;
    const std::int64_t first = std::int64_t{replicas_ ? replicas_->rank() : 0} * num_microbatches_;
    setup.options.before_compute = [this, first](int microbatch) { microbatch_ = first + microbatch; };
  }
  void begin_step(Step& step) override { step_ = step.report.step - 1; }
  /// The loss summed over the micro-batches of all replicas, on the first replica; 0 on the others.
  void end_step(Step& step) override {
    if (!replicas_ || replicas_->size() == 1) return;
    step.completions.push_back([this](StepReport& report) { report.loss = sum_of_replicas(report.loss); });
  }

 private:
  double sum_of_replicas(double mine) {
    at::Tensor all = at::full({replicas_->size()}, 0, at::kDouble);
    replicas_->all_gather(all, at::full({1}, mine, at::kDouble));
    // A rank whose loss is not finite reports that itself, so that it is named.
    if (!std::isfinite(mine)) return mine;
    if (replicas_->rank() > 0) return 0;
    const auto* first = all.const_data_ptr<double>();
    std::vector<double> losses(first, first + replicas_->size());
    std::ranges::replace_if(
        losses, [](double loss) { return !std::isfinite(loss); }, 0);
    return parallel::exact_sum(std::move(losses));
  }

  std::optional<comm::Group> replicas_;
  const std::uint64_t seed_;
  const int num_microbatches_;
  std::int64_t step_ = 0;
  std::int64_t microbatch_ = 0;  ///< among those of all replicas
};

}  // namespace

std::unique_ptr<StepPart> make_exact_sums(const PartSetup& setup) {
  return setup.plan.exact() ? std::make_unique<ExactSums>(setup) : nullptr;
}

void check_exact(const ParallelPlan& plan) {
  const auto reject_if = [](bool found, Fixes fixes, const auto&... reason) {
    fixes.push_back(set(&RunConfig::run, &RunOptions::exact, false));
    if (found) throw PlanError(text("run.exact = true: ", reason...), fixes);
  };
  using Parallel = ParallelOptions;
  const Parallel& parallel = plan.config().parallel;
  // The micro-batches of a replica are a branch of the tree over all of them if they are a power of two.
  const auto number = static_cast<std::uint64_t>(plan.num_microbatches());
  const std::int64_t rounds = plan.config().train.accumulation;
  const auto below = [](std::int64_t value) {
    return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(value)));
  };
  Fixes fixes = {set(&RunConfig::train, &TrainOptions::accumulation, below(rounds))};
  if (parallel.pipeline > 1)
    fixes.push_back(
        set(&RunConfig::parallel, &Parallel::microbatches, below(plan.num_microbatches() / rounds)));
  reject_if(plan.num_replicas() > 1 && !std::has_single_bit(number), fixes, "each of ", plan.num_replicas(),
            " replicas has ", number,
            " micro-batches, and sums over them follow a binary tree; make them a power of two "
            "(train.accumulation, parallel.microbatches)");
}

void check_exact(const ParallelPlan& plan, model::Model& model) {
  if (!plan.config().run.exact) return;
  for (const auto& buffer : model.named_buffers()) {
    require(
        !buffer.key().ends_with("running_mean"), "run.exact = true: ", buffer.key(),
        " is a running statistic, and depends on which micro-batches a rank has seen; take a norm without "
        "one (group norm, layer norm), or leave run.exact out");
  }
  const std::vector<model::Layer> layers = model.layers();
  std::map<std::string, std::vector<std::size_t>> users;
  for (std::size_t i = 0; i < layers.size(); ++i)
    for (const auto& [name, parameter] : layers[i].parameters) users[name].push_back(i);
  for (const auto& [name, of] : users) {
    require(
        of.size() <= 2, "run.exact = true: ", of.size(), " layers share ", name,
        ", and the order in which their gradients are added depends on the ranks that have them; share it "
        "between two, or leave run.exact out");
    const bool apart =
        of.size() < 2 || plan.stages_are_layers() || (of.front() == 0 && of.back() + 1 == layers.size());
    require(apart, "run.exact = true: ", layers[of.front()].name, " and ", layers[of.back()].name, " share ",
            name,
            ", and whether they are in one stage decides when their gradients are added; cut layers that "
            "share a parameter with parallel.pipeline = 1 alone, or leave run.exact out");
  }
}

}  // namespace trireme::train
