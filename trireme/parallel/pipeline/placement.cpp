#include "trireme/parallel/pipeline/internal/placement.h"

#include "trireme/base/error.h"
#include "trireme/comm/text_difference.h"
#include "trireme/parallel/pipeline/internal/cut.h"
#include "trireme/parallel/pipeline/internal/edge_codec.h"
#include "trireme/parallel/pipeline/internal/transfers.h"

namespace trireme::parallel {
namespace {

std::string join_ranks(const std::vector<int>& ranks) {
  std::vector<std::string> words;
  for (const int rank : ranks) words.push_back(std::to_string(rank));
  return join(words);
}

/// What all ranks have to agree on, a line for each part.
std::string description(const schedule::Program& program, const std::vector<model::Layer>& layers,
                        const std::vector<Pipeline::StageLayers>& stages, const PipelineOptions& options) {
  std::string lines = text("schedule ", program.name, ", ", program.num_microbatches, " micro-batches, ",
                           options.recompute ? "recompute" : "no recompute", "\n");
  lines += text("activations travel as ", to_text(options.activations), "\n");
  for (const auto& stage : stages)
    lines +=
        text("stage of layers ", stage.first, " to ", stage.last, " on rank ", join_ranks(stage.ranks), "\n");
  for (const model::Layer& layer : layers) {
    lines += text("layer ", layer.name);
    for (const auto& [name, parameter] : layer.parameters)
      lines += text(" ", name, " ", to_text(spec_of(parameter)));
    for (const std::string& name : layer.takes) lines += text(" takes ", name);
    for (const std::string& name : layer.gives) lines += text(" gives ", name);
    lines += "\n";
  }
  return lines + schedule::to_csv(program);
}

}  // namespace

std::vector<Pipeline::StageLayers> place_stages(const schedule::Program& program,
                                                const std::vector<model::Layer>& layers,
                                                const std::vector<int>& cuts) {
  const int num_layers = static_cast<int>(layers.size());
  require(program.num_stages <= num_layers, "schedule '", program.name, "' has ", program.num_stages,
          " stages, the model only ", num_layers, " layers: use fewer ranks or chunks");
  std::vector<int> bounds = cuts.empty() ? cuts_by_parameters(layers, program.num_stages) : cuts;
  check_cuts(bounds, num_layers, program.num_stages);
  bounds.insert(bounds.begin(), 0);
  bounds.push_back(num_layers);
  const auto ranks = schedule::ranks_of_stages(program);
  std::vector<Pipeline::StageLayers> stages;
  for (std::size_t stage = 0; stage < ranks.size(); ++stage)
    stages.push_back({.first = bounds[stage], .last = bounds[stage + 1], .ranks = ranks[stage]});
  return stages;
}

void check_same_pipeline(comm::Group& group, const schedule::Program& program,
                         const std::vector<model::Layer>& layers,
                         const std::vector<Pipeline::StageLayers>& stages, const PipelineOptions& options) {
  if (const auto difference =
          comm::find_text_difference(group, description(program, layers, stages, options)))
    throw InvalidArgument("ranks have different pipelines: " + difference->describe());
}

}  // namespace trireme::parallel
