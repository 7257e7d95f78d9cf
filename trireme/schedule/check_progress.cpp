#include <algorithm>
#include <set>

#include "trireme/schedule/internal/checks.h"
#include "trireme/schedule/internal/place.h"
#include "trireme/schedule/internal/reductions.h"

namespace trireme::schedule {
namespace {

/// Runs all ranks at once, each in its own cell. Every action that can run does. No choice disables another
/// one, so a deadlock here is a deadlock in every execution.
class ProgressCheck {
 public:
  ProgressCheck(const Program& program, const Holders& holders, const ValidateOptions& options)
      : program_(program),
        holders_(holders),
        options_(options),
        made_(holders),
        reductions_(program),
        ranks_(program.ranks.size()) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].cells = cells_of(program.ranks[rank]);
      enter(rank);
    }
  }

  void run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        while (ranks_[rank].at < ranks_[rank].cells.size() && can_leave(rank)) {
          leave(rank);
          progress = true;
        }
      }
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].at < ranks_[rank].cells.size()) refuse(rank);
    }
  }

 private:
  struct Rank {
    std::vector<Cell> cells;
    std::size_t at = 0;
  };

  /// Transfers of a cell are posted as soon as the rank enters it.
  void enter(std::size_t rank) {
    Rank& here = ranks_[rank];
    if (here.at == here.cells.size()) return;
    reductions_.enter(rank, here.at, here.cells[here.at]);
    for (Action action : here.cells[here.at]) {
      action.joined = false;
      if (is_transfer(action.kind)) posted_.insert(action);
    }
  }

  void leave(std::size_t rank) {
    Rank& here = ranks_[rank];
    for (const Action& action : here.cells[here.at]) {
      if (is_compute(action.kind)) made_.note(action);
    }
    ++here.at;
    enter(rank);
  }

  bool can_leave(std::size_t rank) {
    const Cell cell = ranks_[rank].cells[ranks_[rank].at];
    return std::all_of(cell.begin(), cell.end(),
                       [&](const Action& action) { return waits_for(rank, action) == kNobody; });
  }

  static constexpr int kNobody = Holders::kNobody;

  /// The rank that `action` waits for now.
  int waits_for(std::size_t rank, const Action& action) {
    if (is_transfer(action.kind)) {
      if (is_send(action.kind) && options_.transport == Transport::kBuffered) return kNobody;
      const Action other = partner(action);
      return posted_.contains(other) ? kNobody : holders_.rank_of(other.stage, other.microbatch);
    }
    // With transfers, check_lists has verified that a computation's inputs come before it in its own list.
    if (is_compute(action.kind) && options_.form == Form::kOrder && !made_.has_inputs_of(action)) {
      const int stage = action.kind == ActionKind::kForward ? action.stage - 1 : action.stage + 1;
      return holders_.rank_of(stage, action.microbatch);
    }
    if (action.kind == ActionKind::kReduceGrad) return reductions_.missing(rank, action.stage);
    return kNobody;
  }

  static Action partner(const Action& transfer) {
    switch (transfer.kind) {
      case ActionKind::kReceiveForward:
        return {transfer.stage - 1, ActionKind::kSendForward, transfer.microbatch};
      case ActionKind::kReceiveBackward:
        return {transfer.stage + 1, ActionKind::kSendBackward, transfer.microbatch};
      default:
        return Holders::receive_of(transfer);
    }
  }

  /// Follows the waiting ranks until one repeats or has no action left.
  [[noreturn]] void refuse(std::size_t first) {
    std::string story;
    std::vector<std::size_t> seen;
    for (std::size_t rank = first; std::count(seen.begin(), seen.end(), rank) == 0;) {
      seen.push_back(rank);
      const Rank& here = ranks_[rank];
      if (here.at == here.cells.size()) {
        story += text("; rank ", rank, " is at its end");
        break;
      }
      const Cell cell = here.cells[here.at];
      int next = kNobody;
      for (const Action& action : cell) next = next == kNobody ? waits_for(rank, action) : next;
      if (rank != first) story += text("; rank ", rank, ", position ", here.at, ", ", to_text(cell));
      story += text(rank == first ? "" : ",", " waits for rank ", next);
      rank = static_cast<std::size_t>(next);
    }
    const Rank& stuck = ranks_[first];
    throw InvalidArgument(text(
        "program '", program_.name, "': rank ", first, ", position ", stuck.at, ", ",
        to_text(stuck.cells[stuck.at]), ": deadlock",
        options_.form == Form::kOrder ? ":" : text(" with transport '", to_text(options_.transport), "':"),
        story));
  }

  const Program& program_;
  const Holders& holders_;
  const ValidateOptions& options_;
  Made made_;
  Reductions reductions_;
  std::vector<Rank> ranks_;
  std::set<Action> posted_;
};

}  // namespace

void check_progress(const Program& program, const Holders& holders, const ValidateOptions& options) {
  ProgressCheck(program, holders, options).run();
}

}  // namespace trireme::schedule
