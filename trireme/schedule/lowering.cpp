#include "trireme/schedule/lowering.h"

#include <algorithm>
#include <map>

#include "trireme/base/error.h"
#include "trireme/schedule/internal/holders.h"
#include "trireme/schedule/internal/transfers.h"
#include "trireme/schedule/validate.h"

namespace trireme::schedule {
namespace {

using Actions = std::vector<Action>;

/// For each cell: the next `count` different stages that the rank computes from that cell on.
std::vector<std::vector<int>> next_stages(const std::vector<Cell>& cells, std::size_t count) {
  std::vector<std::vector<int>> next(cells.size());
  std::vector<int> all;  // by their first use after the cell
  for (std::size_t i = cells.size(); i-- > 0;) {
    for (auto action = cells[i].rbegin(); action != cells[i].rend(); ++action) {
      if (!is_compute(action->kind)) continue;
      std::erase(all, action->stage);
      all.insert(all.begin(), action->stage);
    }
    next[i].assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(count, all.size())));
  }
  return next;
}

/// UNSHARD for the stages that are used next, RESHARD for the others.
Actions with_sharding(const Actions& actions, int max_stages) {
  const std::vector<Cell> cells = cells_of(actions);
  const std::vector<std::vector<int>> next_of = next_stages(cells, static_cast<std::size_t>(max_stages));
  std::vector<int> gathered;
  Actions result;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::vector<int>& next = next_of[i];
    std::erase_if(gathered, [&](int stage) {
      const bool evict = std::count(next.begin(), next.end(), stage) == 0;
      if (evict) result.push_back({.stage = stage, .kind = ActionKind::kReshard});
      return evict;
    });
    for (const int stage : next) {
      if (std::count(gathered.begin(), gathered.end(), stage) > 0) continue;
      result.push_back({.stage = stage, .kind = ActionKind::kUnshard});
      gathered.push_back(stage);
    }
    result.insert(result.end(), cells[i].begin(), cells[i].end());
  }
  for (const int stage : gathered) result.push_back({.stage = stage, .kind = ActionKind::kReshard});
  return result;
}

/// REDUCE_GRAD once a stage has all its gradients, after the transfers that follow the backward. With
/// replicas, which wait for each other, all REDUCE_GRADs come at the end. STEP for every stage comes last.
Actions with_update(const Actions& actions, bool replicated) {
  std::map<int, int> left;  // remaining backwards of each stage
  for (const Action& action : actions) left[action.stage] += makes_weight_gradient(action.kind) ? 1 : 0;
  Actions result, ready;
  for (const Cell cell : cells_of(actions)) {
    if (!replicated && is_compute(cell.front().kind)) {
      result.insert(result.end(), ready.begin(), ready.end());
      ready.clear();
    }
    result.insert(result.end(), cell.begin(), cell.end());
    for (const Action& action : cell) {
      if (!makes_weight_gradient(action.kind) || --left[action.stage] > 0) continue;
      ready.push_back({.stage = action.stage, .kind = ActionKind::kReduceGrad});
    }
  }
  if (replicated) std::sort(ready.begin(), ready.end());
  result.insert(result.end(), ready.begin(), ready.end());
  for (const auto& [stage, count] : left) result.push_back({.stage = stage, .kind = ActionKind::kStep});
  return result;
}

}  // namespace

Program lower(const Program& order, const LoweringOptions& options) {
  require(!has_transfers(order), "program '", order.name,
          "' says already where to send and receive; expected computations only");
  validate(order, {.form = Form::kOrder});
  Program program = order;
  if (options.max_unsharded_stages > 0)
    program = gathered_for_use(std::move(program), options.max_unsharded_stages);
  program.ranks = options.transport == Transport::kBuffered ? with_buffered_transfers(program)
                                                            : with_rendezvous_transfers(program);
  if (options.with_update && program.update_every == 0) {
    for (Actions& actions : program.ranks) actions = with_update(actions, !program.replicas.empty());
  }
  return program;
}

Program gathered_for_use(Program program, int max_stages) {
  require(max_stages >= 1, "a rank gathers the weights of at least 1 stage at a time, not ", max_stages);
  program = without_idle(std::move(program));
  for (Actions& actions : program.ranks) actions = with_sharding(actions, max_stages);
  return program;
}

bool has_gathers(const Program& program) {
  return std::ranges::any_of(program.ranks, [](const Actions& actions) {
    return std::ranges::any_of(actions,
                               [](const Action& action) { return action.kind == ActionKind::kUnshard; });
  });
}

Program merge_backward(Program program) {
  program = without_idle(std::move(program));
  for (Actions& actions : program.ranks) {
    Actions merged;
    for (const Action& action : actions) {
      const Action weight_part{action.stage, ActionKind::kBackwardWeight, action.microbatch};
      if (!merged.empty() && merged.back().kind == ActionKind::kBackwardInput && action == weight_part &&
          merged.back().stage == action.stage && merged.back().microbatch == action.microbatch) {
        merged.back().kind = ActionKind::kBackward;
      } else {
        merged.push_back(action);
      }
    }
    actions = std::move(merged);
  }
  return program;
}

}  // namespace trireme::schedule
