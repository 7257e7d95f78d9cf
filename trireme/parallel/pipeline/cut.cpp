#include "trireme/parallel/pipeline/internal/cut.h"

#include <algorithm>
#include <limits>

#include "trireme/base/error.h"

namespace trireme::parallel {
namespace {

std::int64_t num_parameters(const model::Layer& layer) {
  std::int64_t count = 0;
  for (const auto& [name, parameter] : layer.parameters) count += parameter.numel();
  return count;
}

/// sums[i]: parameters of the first i layers.
std::vector<std::int64_t> prefix_sums(const std::vector<model::Layer>& layers) {
  std::vector<std::int64_t> sums = {0};
  for (const model::Layer& layer : layers) sums.push_back(sums.back() + num_parameters(layer));
  return sums;
}

}  // namespace

std::vector<int> cuts_by_parameters(const std::vector<model::Layer>& layers, int num_stages) {
  const auto n = layers.size(), stages = static_cast<std::size_t>(num_stages);
  require(stages <= n, "a model of ", n, " layers cannot be cut into ", num_stages, " stages");
  const std::vector<std::int64_t> sums = prefix_sums(layers);
  // best[s][i]: the largest stage when the first i layers form s stages; from[s][i]: where the last begins.
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::vector best(stages + 1, std::vector<std::int64_t>(n + 1, kNone));
  std::vector from(stages + 1, std::vector<std::size_t>(n + 1, 0));
  best[0][0] = 0;
  for (std::size_t s = 1; s <= stages; ++s) {
    for (std::size_t i = s; i <= n; ++i) {
      for (std::size_t first = s - 1; first < i; ++first) {
        const std::int64_t largest = std::max(best[s - 1][first], sums[i] - sums[first]);
        if (best[s - 1][first] == kNone || largest >= best[s][i]) continue;
        best[s][i] = largest;
        from[s][i] = first;
      }
    }
  }
  std::vector<int> cuts;
  for (std::size_t s = stages, i = n; s > 1; --s) {
    i = from[s][i];
    cuts.insert(cuts.begin(), static_cast<int>(i));
  }
  return cuts;
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
