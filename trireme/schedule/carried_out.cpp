#include "trireme/schedule/carried_out.h"

#include "trireme/base/text.h"

namespace trireme::schedule {
namespace {

/// Empty: a run executes this kind.
std::string reason_against(ActionKind kind, Activations activations, Weights weights) {
  const bool gathers = kind == ActionKind::kUnshard || kind == ActionKind::kReshard;
  if (gathers && weights == Weights::kWhole)
    return "a run holds the weights of every stage whole and gathers none, unless parallel.zero is 1, 2 or "
           "3; leave UNSHARD and RESHARD out";
  if (kind == ActionKind::kRecompute && activations == Activations::kKept)
    return "a run keeps its activations and has nothing to recompute, unless parallel.recompute = true";
  return "";
}

}  // namespace

std::string not_carried_out(const Program& program, Activations activations, Weights weights) {
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    std::size_t position = 0;
    for (const Cell cell : cells_of(program.ranks[rank])) {
      for (const Action& action : cell) {
        const std::string reason = reason_against(action.kind, activations, weights);
        if (!reason.empty())
          return text("rank ", rank, ", position ", position, ", ", to_text(action), ": ", reason);
      }
      ++position;
    }
  }
  return "";
}

}  // namespace trireme::schedule
