#include "trireme/model/layer_cuts.h"

#include "trireme/base/error.h"
#include "trireme/base/min_max_cuts.h"

namespace trireme::model {
namespace {

double num_parameters(const Layer& layer) {
  std::int64_t count = 0;
  for (const auto& [name, parameter] : layer.parameters) count += parameter.numel();
  return static_cast<double>(count);
}

}  // namespace

std::vector<int> cuts_by_parameters(const std::vector<Layer>& layers, int num_parts) {
  require(num_parts >= 1 && static_cast<std::size_t>(num_parts) <= layers.size(), "a model of ",
          layers.size(), " layers cannot be cut into ", num_parts, " stages");
  std::vector<double> costs;
  for (const Layer& layer : layers) costs.push_back(num_parameters(layer));
  const std::vector<std::size_t> ends = min_max_cuts(costs, static_cast<std::size_t>(num_parts));
  return {ends.begin(), ends.end() - 1};
}

}  // namespace trireme::model
