#include "trireme/parallel/pipeline/internal/placement.h"

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/comm/text_difference.h"
#include "trireme/model/layer_cuts.h"
#include "trireme/parallel/pipeline/internal/cut.h"
#include "trireme/parallel/pipeline/internal/edge_codec.h"
#include "trireme/parallel/pipeline/internal/transfers.h"
#include "trireme/parallel/zero/internal/released_parameter.h"

namespace trireme::parallel {
namespace {

std::string join_ranks(const std::vector<int>& ranks) {
  std::vector<std::string> words;
  for (const int rank : ranks) words.push_back(std::to_string(rank));
  return join(words);
}

/// The spec of the values, even if they are on another stage of a pipeline that still exists.
TensorSpec spec_of_parameter(const at::Tensor& parameter) {
  TensorSpec spec = spec_of(parameter);
  if (auto sizes = sizes_on_other_stage(parameter)) spec.sizes = std::move(*sizes);
  return spec;
}

/// The name of a parameter that this rank needs and whose values it has released; empty if none.
std::string find_taken(const std::vector<model::Layer>& layers,
                       const std::vector<Pipeline::StageLayers>& stages, int rank) {
  for (const auto& stage : stages) {
    if (std::find(stage.ranks.begin(), stage.ranks.end(), rank) == stage.ranks.end()) continue;
    for (int i = stage.first; i < stage.last; ++i)
      for (const auto& [name, parameter] : layers[static_cast<std::size_t>(i)].parameters)
        if (sizes_on_other_stage(parameter)) return name;
  }
  return "";
}

/// Everything that all ranks must agree on, one line for each part.
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
      lines += text(" ", name, " ", to_text(spec_of_parameter(parameter)));
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
  std::vector<int> bounds = cuts.empty() ? model::cuts_by_parameters(layers, program.num_stages) : cuts;
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
  // The line differs between ranks, so all of them throw. Otherwise the others would wait for the rank
  // without values.
  const std::string taken = find_taken(layers, stages, group.rank());
  const std::string lacking =
      taken.empty()
          ? ""
          : text("group rank ", group.rank(), " has no values of '", taken,
                 "': a Pipeline that lives has its layer on another rank; end that one first, or make "
                 "this one with the same cuts\n");
  if (const auto difference =
          comm::find_text_difference(group, lacking + description(program, layers, stages, options)))
    throw InvalidArgument("ranks have different pipelines: " + difference->describe());
}

}  // namespace trireme::parallel
