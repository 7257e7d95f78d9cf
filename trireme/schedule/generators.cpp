#include "trireme/base/error.h"
#include "trireme/schedule/program.h"

namespace trireme::schedule {

Program data_parallel(int num_microbatches) {
  require(num_microbatches >= 1, "a step needs at least 1 micro-batch, found ", num_microbatches);
  std::vector<Action> actions;
  for (int microbatch = 0; microbatch < num_microbatches; ++microbatch) {
    actions.push_back({.stage = 0, .kind = ActionKind::kForward, .microbatch = microbatch});
    actions.push_back({.stage = 0, .kind = ActionKind::kBackward, .microbatch = microbatch});
  }
  actions.push_back({.stage = 0, .kind = ActionKind::kReduceGrad});
  actions.push_back({.stage = 0, .kind = ActionKind::kStep});
  return {.name = "data-parallel",
          .num_stages = 1,
          .num_microbatches = num_microbatches,
          .ranks = {std::move(actions)}};
}

}  // namespace trireme::schedule
