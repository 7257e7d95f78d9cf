#include "trireme/schedule/internal/slots.h"

#include "trireme/schedule/internal/holders.h"

namespace trireme::schedule {

Program with_slots(const Program& order) {
  Program table = order;
  const Holders holders(order);
  Made made(holders);
  std::vector<std::size_t> next(order.ranks.size(), 0);
  for (std::vector<Action>& slots : table.ranks) slots.clear();
  for (bool finished = false; !finished;) {
    finished = true;
    std::vector<Action> in_this_slot;
    for (std::size_t rank = 0; rank < order.ranks.size(); ++rank) {
      if (next[rank] == order.ranks[rank].size()) continue;
      finished = false;
      const Action& action = order.ranks[rank][next[rank]];
      const bool waits = action.kind == ActionKind::kForward || action.kind == ActionKind::kBackward;
      if (waits && !made.has_inputs_of(action)) {
        table.ranks[rank].push_back({.kind = ActionKind::kIdle});
        continue;
      }
      table.ranks[rank].push_back(action);
      if (action.kind != ActionKind::kIdle) in_this_slot.push_back(action);
      ++next[rank];
    }
    for (const Action& action : in_this_slot) made.note(action);
  }
  return table;
}

}  // namespace trireme::schedule
