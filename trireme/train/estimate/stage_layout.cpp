#include "trireme/train/estimate/internal/stage_layout.h"

#include <algorithm>
#include <set>

#include "trireme/train/parts/recomputed_layers.h"

namespace trireme::train {
namespace {

schedule::Program program_of(const ParallelPlan& plan) {
  if (!plan.asynchronous()) return plan.program();
  return parallel::pipeline_program(plan.pipeline_options(), plan.pipeline_ranks(),
                                    schedule::Transport::kBuffered, 3 * plan.pipeline_ranks());
}

}  // namespace

StageLayout::StageLayout(const ParallelPlan& plan, const ModelUse& model)
    : plan_(plan), model_(model), program_(program_of(plan)) {
  std::vector<std::string> names;
  std::vector<plan::Recomputable> costs;
  for (std::size_t i = 0; i + 1 < model.layers.size(); ++i) {
    names.push_back(model.layers[i].name);
    costs.push_back(model.layers[i].memory.kept);
  }
  recomputed_ = recomputed_layers(plan, names, [&] { return costs; }).layers;
  recomputed_.push_back(false);
  ranks_of_stages_ = schedule::ranks_of_stages(program_);
}

std::pair<std::size_t, std::size_t> StageLayout::layers_of(int stage) const {
  const std::vector<int>& cuts = plan_.cuts();
  const auto at = static_cast<std::size_t>(stage);
  return {stage == 0 ? 0 : static_cast<std::size_t>(cuts[at - 1]),
          at == cuts.size() ? model_.layers.size() : static_cast<std::size_t>(cuts[at])};
}

std::vector<int> StageLayout::stages_of(int rank) const {
  std::vector<int> stages;
  for (int stage = 0; stage < num_stages(); ++stage) {
    const std::vector<int>& ranks = ranks_of_stages_[static_cast<std::size_t>(stage)];
    if (std::ranges::find(ranks, rank) != ranks.end()) stages.push_back(stage);
  }
  return stages;
}

double StageLayout::bytes_sent(int stage) const {
  if (stage < 0 || stage + 1 >= num_stages() || holder(stage) == holder(stage + 1)) return 0;
  return model_.layers[layers_of(stage).second - 1].memory.kept.output_bytes;
}

std::vector<ParameterUse> StageLayout::parameters_of(const std::vector<int>& stages) const {
  std::set<std::string> names;
  std::vector<ParameterUse> all;
  for (const int stage : stages) {
    const auto [begin, end] = layers_of(stage);
    for (std::size_t i = begin; i < end; ++i) {
      for (const ParameterUse& each : model_.layers[i].parameters)
        if (names.insert(each.name).second) all.push_back(each);
    }
  }
  return all;
}

}  // namespace trireme::train
