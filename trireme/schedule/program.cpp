#include "trireme/schedule/program.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::schedule {

void check_size(std::string_view who, std::int64_t ranks, std::int64_t stages, std::int64_t microbatches) {
  require(ranks <= kMostRanks, who, " has ", ranks, " ranks; at most ", kMostRanks, " are taken");
  require(stages <= kMaxWork / std::max<std::int64_t>(1, microbatches), who, " has ", stages, " stages and ",
          microbatches, " micro-batches; stages times micro-batches are at most ", kMaxWork);
}

Program data_parallel(int num_microbatches, int num_stages) {
  require(num_microbatches >= 1, "a step needs at least 1 micro-batch, found ", num_microbatches);
  require(num_stages >= 1, "a model has at least 1 stage, not ", num_stages);
  std::vector<Action> actions;
  for (int microbatch = 0; microbatch < num_microbatches; ++microbatch) {
    for (int stage = 0; stage < num_stages; ++stage)
      actions.push_back({.stage = stage, .kind = ActionKind::kForward, .microbatch = microbatch});
    for (int stage = num_stages; stage-- > 0;) {
      actions.push_back({.stage = stage, .kind = ActionKind::kBackward, .microbatch = microbatch});
      if (microbatch + 1 == num_microbatches)
        actions.push_back({.stage = stage, .kind = ActionKind::kReduceGrad});
    }
  }
  for (int stage = 0; stage < num_stages; ++stage)
    actions.push_back({.stage = stage, .kind = ActionKind::kStep});
  return {.name = "data-parallel",
          .num_stages = num_stages,
          .num_microbatches = num_microbatches,
          .ranks = {std::move(actions)}};
}

Program repeat(const Program& order, int times) {
  require(times >= 1, "a program is repeated at least once, not ", times, " times");
  Program result = order;
  result.num_microbatches = order.num_microbatches * times;
  for (std::size_t rank = 0; rank < order.ranks.size(); ++rank) {
    for (int run = 1; run < times; ++run) {
      for (Action action : order.ranks[rank]) {
        if (has_microbatch(action.kind)) action.microbatch += run * order.num_microbatches;
        result.ranks[rank].push_back(action);
      }
    }
  }
  return result;
}

Program without_idle(Program program) {
  for (std::vector<Action>& actions : program.ranks) {
    std::erase_if(actions, [](const Action& action) { return action.kind == ActionKind::kIdle; });
  }
  return program;
}

bool has_transfers(const Program& program) {
  return std::any_of(program.ranks.begin(), program.ranks.end(), [](const std::vector<Action>& actions) {
    return std::any_of(actions.begin(), actions.end(),
                       [](const Action& action) { return is_transfer(action.kind); });
  });
}

std::vector<std::vector<int>> ranks_of_stages(const Program& program) {
  std::vector<std::vector<int>> ranks(static_cast<std::size_t>(program.num_stages));
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    for (const Action& action : program.ranks[rank]) {
      if (action.kind == ActionKind::kIdle) continue;
      std::vector<int>& holders = ranks[static_cast<std::size_t>(action.stage)];
      if (holders.empty() || holders.back() != static_cast<int>(rank)) {
        holders.push_back(static_cast<int>(rank));
      }
    }
  }
  return ranks;
}

}  // namespace trireme::schedule
