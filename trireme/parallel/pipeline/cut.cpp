#include "trireme/parallel/pipeline/internal/cut.h"

#include "trireme/base/error.h"
#include "trireme/base/min_max_cuts.h"

namespace trireme::parallel {
namespace {

double num_parameters(const model::Layer& layer) {
  std::int64_t count = 0;
  for (const auto& [name, parameter] : layer.parameters) count += parameter.numel();
  return static_cast<double>(count);
}

}  // namespace

std::vector<int> cuts_by_parameters(const std::vector<model::Layer>& layers, int num_stages) {
  require(static_cast<std::size_t>(num_stages) <= layers.size(), "a model of ", layers.size(),
          " layers cannot be cut into ", num_stages, " stages");
  std::vector<double> costs;
  for (const model::Layer& layer : layers) costs.push_back(num_parameters(layer));
  const std::vector<std::size_t> ends = min_max_cuts(costs, static_cast<std::size_t>(num_stages));
  return {ends.begin(), ends.end() - 1};
}

void check_cuts(const std::vector<int>& cuts, int num_layers, int num_stages) {
  require(static_cast<int>(cuts.size()) == num_stages - 1, num_stages, " stages need ", num_stages - 1,
          " cuts, found ", cuts.size());
  int before = 0;
  for (const int cut : cuts) {
    require(cut > before && cut < num_layers, "a stage cannot begin at layer ", cut,
            ": the one before begins at ", before, " and there are ", num_layers, " layers");
    before = cut;
  }
}

}  // namespace trireme::parallel
