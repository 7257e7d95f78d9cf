// Stages that the configuration names (parallel.cuts).
#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

void ParallelPlan::take_named_cuts(int num_layers) {
  const std::vector<std::int64_t>& named = config_.parallel.cuts;
  require(static_cast<int>(named.size()) == program_.num_stages - 1, "parallel.cuts names ", named.size(),
          " cuts, and the ", program_.num_stages, " stages of schedule '", program_.name, "' have ",
          program_.num_stages - 1,
          " between them; name as many, or set parallel.cuts = [] for those of "
          "parallel.partition");
  const bool rises = std::ranges::adjacent_find(named, std::greater_equal<>()) == named.end();
  require(rises && named.front() >= 1 && named.back() < num_layers,
          "parallel.cuts are the first layers of stages: they rise, and lie below the model's ", num_layers,
          " layers, which are counted from 0");
  options_.cuts.assign(named.begin(), named.end());
}

}  // namespace trireme::train
