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
  require(options.bandwidth_bytes_per_s > 0, "bandwidth_bytes_per_s is ", options.bandwidth_bytes_per_s,
          "; expected more than 0");
  require(options.memory_limit_bytes > 0, "memory_limit_bytes is ", options.memory_limit_bytes,
          "; expected more than 0");
  require(options.parameter_copies >= 1, "parameter_copies is ", options.parameter_copies,
          "; expected at least 1");
}

/// The cut that needs least memory tells how far the limit is off.
[[noreturn]] void refuse_limit(const Profile& profile, const ChainOptions& options) {
  double needed = 0;
  const StageCost memory = [&](std::size_t stage, std::size_t from, std::size_t to) {
    return stage_memory_bytes(profile.between(from, to), stage, options);
  };
  std::size_t from = 0, stage = 0;
  for (const std::size_t to : best_cuts(profile, options.num_stages, memory)) {
    needed = std::max(needed, memory(stage++, from, to));
    from = to;
  }
  throw InvalidArgument(text("no cut into ", options.num_stages, " stages keeps each within ",
                             options.memory_limit_bytes, " bytes; the best one needs ", needed,
                             ": use more stages, or smaller micro-batches"));
}

}  // namespace

double stage_memory_bytes(const Work& work, std::size_t stage, const ChainOptions& options) {
  const auto in_flight = static_cast<double>(options.num_stages - stage);
  return options.parameter_copies * work.parameter_bytes + in_flight * work.activation_bytes;
}

std::vector<std::size_t> cut_chain(std::span<const Layer> layers, const ChainOptions& options) {
  const Profile profile(layers);
  check(options, profile.num_layers());
  const StageCost cost = [&](std::size_t stage, std::size_t from, std::size_t to) {
    const Work work = profile.between(from, to);
    if (stage_memory_bytes(work, stage, options) > options.memory_limit_bytes)
      return std::numeric_limits<double>::infinity();
    return std::max(work.compute_s, transfer_s(profile.output_bytes(to), options.bandwidth_bytes_per_s));
  };
  std::vector<std::size_t> cuts = best_cuts(profile, options.num_stages, cost);
  if (cuts.empty()) refuse_limit(profile, options);
  cuts.pop_back();
  return cuts;
}

}  // namespace trireme::plan
