// The same order as _add_send_recv of torch.distributed.pipelining.schedules, implemented again.

#include "trireme/base/error.h"
#include "trireme/schedule/internal/reductions.h"
#include "trireme/schedule/internal/transfers.h"

namespace trireme::schedule {
namespace {

class BufferedWalk {
 public:
  explicit BufferedWalk(const Program& order)
      : order_(order),
        holders_(order),
        made_(holders_),
        reductions_(order),
        next_(order.ranks.size()),
        lists_(order.ranks.size()) {
    for (const std::vector<Action>& actions : order.ranks) cells_.push_back(cells_of(actions));
  }

  std::vector<std::vector<Action>> run() {
    while (true) {
      bool progress = false;
      bool finished = true;
      for (std::size_t rank = 0; rank < cells_.size(); ++rank) {
        if (next_[rank] == cells_[rank].size()) continue;
        finished = false;
        progress = take(rank, cells_[rank][next_[rank]]) || progress;
      }
      if (finished) return std::move(lists_);
      if (!progress) throw InternalError(text("the order of '", order_.name, "' waits for itself"));
    }
  }

 private:
  bool take(std::size_t rank, Cell cell) {
    for (const Action& action : cell) {
      if (!made_.has_inputs_of(action)) return false;
    }
    reductions_.enter(rank, next_[rank], cell);
    if (cell.front().kind == ActionKind::kReduceGrad &&
        reductions_.missing(rank, cell.front().stage) != Holders::kNobody) {
      return false;
    }
    ++next_[rank];
    if (cell.front().kind == ActionKind::kIdle) return true;
    lists_[rank].insert(lists_[rank].end(), cell.begin(), cell.end());
    for (const Action& action : cell) {
      made_.note(action);
      if (!holders_.crosses(action)) continue;
      const Action send = Holders::send_of(action);
      const Action receive = Holders::receive_of(send);
      lists_[rank].push_back(send);
      const int receiver = holders_.rank_of(receive.stage, receive.microbatch);
      lists_[static_cast<std::size_t>(receiver)].push_back(receive);
    }
    return true;
  }

  const Program& order_;
  Holders holders_;
  Made made_;
  Reductions reductions_;
  std::vector<std::vector<Cell>> cells_;
  std::vector<std::size_t> next_;
  std::vector<std::vector<Action>> lists_;
};

}  // namespace

std::vector<std::vector<Action>> with_buffered_transfers(const Program& order) {
  return BufferedWalk(order).run();
}

}  // namespace trireme::schedule
