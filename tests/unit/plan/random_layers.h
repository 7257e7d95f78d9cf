#pragma once
// Small random chains, and all cuts of a chain.

#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "trireme/plan/profile.h"

namespace trireme::plan {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline std::vector<Layer> random_layers(std::size_t count, std::mt19937& random) {
  std::uniform_real_distribution<double> figure(0.1, 1);
  std::vector<Layer> layers(count);
  for (Layer& layer : layers) {
    layer = {.name = "layer",
             .forward_s = figure(random),
             .backward_s = 2 * figure(random),
             .activation_bytes = 100 * figure(random),
             .parameter_bytes = 50 * figure(random),
             .output_bytes = 20 * figure(random)};
  }
  return layers;
}

/// Calls `visit` with every ascending list of `num_stages` cuts that ends at `last`.
inline void for_every_cut(std::size_t num_stages, std::size_t last,
                          const std::function<void(const std::vector<std::size_t>&)>& visit) {
  std::vector<std::size_t> cuts;
  const std::function<void()> extend = [&] {
    const std::size_t from = cuts.empty() ? 0 : cuts.back();
    const bool is_last_stage = cuts.size() + 1 == num_stages;
    for (std::size_t to = is_last_stage ? last : from + 1; to <= last && to > from; ++to) {
      cuts.push_back(to);
      is_last_stage ? visit(cuts) : extend();
      cuts.pop_back();
    }
  };
  extend();
}

}  // namespace trireme::plan
