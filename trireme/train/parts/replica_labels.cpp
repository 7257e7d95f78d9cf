#include "trireme/train/parts/internal/replica_labels.h"

#include <set>

namespace trireme::train {
namespace {

comm::Group compared_group(const ParallelPlan& plan, const PlanGroups& groups, comm::Context& context) {
  if (plan.uses_parameter_server()) return context.self();
  if (plan.uses_local_sgd()) return groups.sites->site.value_or(context.self());
  return context.world();
}

}  // namespace

std::unique_ptr<parallel::ReplicaCheck> make_replica_check(const ParallelPlan& plan, const PlanGroups& groups,
                                                           comm::Context& context,
                                                           const ComparedParameters& parameters) {
  const ShardSpecs whole{.cut = parameters.held.cut, .pieces = {}};
  const bool stay_gathered = plan.zero() != parallel::ZeroStage::kParameters;
  optim::NamedTensors labelled;
  std::set<std::string> updated_whole;
  for (const auto& [name, updated] : parameters.updated) {
    if (!parameters.held.pieces.contains(name)) updated_whole.insert(name);
    if (!updated.is_meta()) labelled.emplace_back(parameters.held.label_of(name), updated);
  }
  for (const auto& [name, weight] : parameters.weights) {
    if (stay_gathered && !updated_whole.contains(name)) labelled.emplace_back(whole.label_of(name), weight);
  }
  return std::make_unique<parallel::ReplicaCheck>(compared_group(plan, groups, context), std::move(labelled),
                                                  "; parallel.check_replicas_every = 0 compares nothing");
}

}  // namespace trireme::train
