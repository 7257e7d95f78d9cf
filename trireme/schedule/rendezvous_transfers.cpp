// Simulates the ranks, with F, I and W of one unit each. A message is transferred when both its ranks are
// between two computations. All transfers of a rank between the same two computations form one batch. The
// simulation is itself an execution of the result under the rendezvous model. A transfer that can run never
// blocks another, so every execution has the same end.

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/schedule/internal/reductions.h"
#include "trireme/schedule/internal/transfers.h"

namespace trireme::schedule {
namespace {

constexpr long kNever = -1;

long duration(Cell cell) {
  long units = 0;
  for (const Action& action : cell) {
    if (is_compute(action.kind)) units += action.kind == ActionKind::kBackward ? 2 : 1;
  }
  return units;
}

class RendezvousWalk {
 public:
  explicit RendezvousWalk(Program order)
      : order_(without_idle(std::move(order))), holders_(order_), made_(holders_), reductions_(order_) {
    for (const std::vector<Action>& actions : order_.ranks) ranks_.push_back({.cells = cells_of(actions)});
  }

  std::vector<std::vector<Action>> run() {
    for (long now = 0; now != kNever; now = next_end(now)) {
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) finish(rank, now);
      // Actions without duration enable others at the same time.
      while (hand_over() || start_all(now)) {
      }
    }
    std::vector<std::vector<Action>> lists;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].next < ranks_[rank].cells.size()) {
        throw InternalError(text("the order of '", order_.name, "' waits for itself"));
      }
      close_batch(ranks_[rank]);
      lists.push_back(std::move(ranks_[rank].list));
    }
    return lists;
  }

 private:
  struct Rank {
    std::vector<Cell> cells;
    std::size_t next = 0;  ///< the cell to start
    long busy_until = kNever;
    int unsent = 0;                  ///< messages to transfer before this rank may continue
    std::vector<Action> batch = {};  ///< transfers since the last computation
    std::vector<Action> list = {};
  };

  static void close_batch(Rank& rank) {
    for (Action& action : rank.batch) action.joined = true;
    if (!rank.batch.empty()) rank.batch.back().joined = false;
    rank.list.insert(rank.list.end(), rank.batch.begin(), rank.batch.end());
    rank.batch.clear();
  }

  void finish(std::size_t index, long now) {
    Rank& rank = ranks_[index];
    if (rank.busy_until == kNever || rank.busy_until > now) return;
    rank.busy_until = kNever;
    for (const Action& action : rank.cells[rank.next - 1]) {
      if (holders_.crosses(action)) {
        unsent_.push_back(Holders::send_of(action));
        ++rank.unsent;
      } else {
        made_.note(action);
      }
    }
  }

  /// Transfers every message whose two ranks are free, in the order in which the messages were made.
  bool hand_over() {
    const auto handed = std::erase_if(unsent_, [&](const Action& send) {
      const Action receive = Holders::receive_of(send);
      Rank& from = ranks_[static_cast<std::size_t>(holders_.rank_of(send.stage, send.microbatch))];
      Rank& to = ranks_[static_cast<std::size_t>(holders_.rank_of(receive.stage, receive.microbatch))];
      if (to.busy_until != kNever) return false;
      from.batch.push_back(send);
      --from.unsent;
      to.batch.push_back(receive);
      made_.note(
          {.stage = send.stage,
           .kind = send.kind == ActionKind::kSendForward ? ActionKind::kForward : ActionKind::kBackwardInput,
           .microbatch = send.microbatch});
      return true;
    });
    return handed > 0;
  }

  /// Starts the next cell of every free rank that can; true if a started cell has no duration.
  bool start_all(long now) {
    bool instant = false;
    for (std::size_t index = 0; index < ranks_.size(); ++index) {
      Rank& rank = ranks_[index];
      if (rank.busy_until != kNever || rank.unsent > 0 || rank.next == rank.cells.size()) continue;
      const Cell cell = rank.cells[rank.next];
      if (!std::all_of(cell.begin(), cell.end(),
                       [&](const Action& action) { return made_.has_inputs_of(action); })) {
        continue;
      }
      reductions_.enter(index, rank.next, cell);
      if (cell.front().kind == ActionKind::kReduceGrad &&
          reductions_.missing(index, cell.front().stage) != Holders::kNobody) {
        continue;
      }
      close_batch(rank);
      rank.list.insert(rank.list.end(), cell.begin(), cell.end());
      ++rank.next;
      rank.busy_until = now + duration(cell);
      if (rank.busy_until > now) continue;
      rank.busy_until = kNever;
      instant = true;
    }
    return instant;
  }

  long next_end(long now) const {
    long next = kNever;
    for (const Rank& rank : ranks_) {
      if (rank.busy_until > now && (next == kNever || rank.busy_until < next)) next = rank.busy_until;
    }
    return next;
  }

  Program order_;
  Holders holders_;
  Made made_;
  Reductions reductions_;
  std::vector<Rank> ranks_;
  std::vector<Action> unsent_;
};

}  // namespace

std::vector<std::vector<Action>> with_rendezvous_transfers(const Program& order) {
  return RendezvousWalk(order).run();
}

}  // namespace trireme::schedule
