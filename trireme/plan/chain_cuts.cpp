#include "trireme/plan/chain_cuts.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/plan/internal/partitioning.h"

namespace trireme::plan {
namespace {

void check(const ChainOptions& options, std::size_t num_layers) {
  require(options.num_stages >= 1, "a pipeline needs at least 1 stage, found 0");
  require(options.num_stages <= num_layers, "found ", options.num_stages, " stages for ", num_layers,
          " layers; a stage has at least one layer: use fewer stages");
  require(options.replicas.empty() || options.replicas.size() == options.num_stages, "found replicas of ",
          options.replicas.size(), " stages; expected those of all ", options.num_stages);
  require(options.bandwidth_bytes_per_s > 0, "bandwidth_bytes_per_s is ", options.bandwidth_bytes_per_s,
          "; expected more than 0");
}

}  // namespace

std::vector<std::size_t> cut_chain(std::span<const Layer> layers, const ChainOptions& options) {
  const Profile profile(layers);
  check(options, profile.num_layers());
  const std::vector<int>& replicas = options.replicas;
  std::vector<std::size_t> cuts =
      best_cuts(profile, options.num_stages, [&](std::size_t stage, std::size_t from, std::size_t to) {
        return std::max(profile.between(from, to).compute_s / (replicas.empty() ? 1 : replicas[stage]),
                        transfer_s(profile.output_bytes(to), options.bandwidth_bytes_per_s));
      });
  cuts.pop_back();
  return cuts;
}

}  // namespace trireme::plan
