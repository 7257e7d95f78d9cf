#include <algorithm>
#include <map>

#include "trireme/schedule/internal/checks.h"
#include "trireme/schedule/internal/place.h"

namespace trireme::schedule {
namespace {

/// Actions done so far for one micro-batch of one stage.
struct Work {
  bool forward = false, input_gradient = false, weight_gradient = false, recomputed = false;
  bool received_input = false, received_gradient = false, sent_output = false, sent_gradient = false;
};

/// Actions done so far for one stage on one rank.
struct Holding {
  int share = 0;      ///< micro-batches of the stage that run on this rank
  int backwards = 0;  ///< with their weight gradient
  int reduced = 0;    ///< backwards that a REDUCE_GRAD has covered
  int updates = 0;
  bool being_reduced = false;  ///< between a REDUCE_GRAD and its STEP
  bool shards = false, unsharded = false, finished = false;
};

/// One action, an overlapped forward and backward, or transfers only.
bool may_run_together(Cell cell) {
  if (cell.size() == 1) return true;
  if (is_transfer(cell.front().kind)) {
    return std::all_of(cell.begin(), cell.end(),
                       [](const Action& action) { return is_transfer(action.kind); });
  }
  return cell.size() == 2 && cell[0].kind == ActionKind::kForward && makes_input_gradient(cell[1].kind);
}

/// The backward is in the same cell as the forward that it needs.
bool waits_for_itself(Cell cell) {
  return cell.size() == 2 && is_compute(cell[0].kind) && cell[0].stage == cell[1].stage &&
         cell[0].microbatch == cell[1].microbatch;
}

class ListCheck {
 public:
  ListCheck(const Program& program, const Holders& holders, Form form)
      : program_(program), holders_(holders), form_(form), work_(holders.size()), stages_(program.replicas) {
    if (stages_.empty()) stages_.resize(static_cast<std::size_t>(program.num_stages));
  }

  void run() {
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      for (const Action& action : program_.ranks[rank]) settle(static_cast<int>(rank), action);
    }
    // Checked first: otherwise work on the wrong rank would be reported as missing on the right one.
    for_each_action([this](const Place& place, Cell) { check_home(place); });
    for_each_action([this](const Place& place, Cell cell) { take(place, cell); });
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) check_complete(static_cast<int>(stage));
  }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  bool is_asynchronous() const { return program_.update_every > 0; }
  bool has_updates() const { return form_ == Form::kStep || is_asynchronous(); }

  /// Runs before the walk. Finds the rank of each stage when the program has no replicas, and the
  /// micro-batches of each rank.
  void settle(int rank, const Action& action) {
    if (action.kind == ActionKind::kIdle || action.stage < 0 || action.stage >= program_.num_stages) return;
    if (program_.replicas.empty() && stages_[at(action.stage)].empty()) stages_[at(action.stage)] = {rank};
    Holding& holding = holdings_[{action.stage, rank}];
    if (action.kind == ActionKind::kForward && holders_.rank_of(action.stage, action.microbatch) == rank) {
      ++holding.share;
    }
    if (action.kind == ActionKind::kUnshard) holding.shards = true;
  }

  template <class Visit>
  void for_each_action(const Visit& visit) const {
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      std::size_t position = 0;
      for (const Cell cell : cells_of(program_.ranks[rank])) {
        for (Action action : cell) {
          action.joined = false;
          if (action.kind != ActionKind::kIdle) visit(Place{rank, position, action}, cell);
        }
        ++position;
      }
    }
  }

  void check_home(const Place& place) const {
    const Action& action = place.action;
    demand(action.stage >= 0 && action.stage < program_.num_stages, place, "stages are 0 to ",
           program_.num_stages - 1);
    const int rank = static_cast<int>(place.rank);
    const std::vector<int>& ranks = stages_[at(action.stage)];
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) {
      std::vector<std::string> names;
      for (const int holder : ranks) names.push_back(std::to_string(holder));
      reject_at(program_, place, "stage ", action.stage, " belongs to rank ", trireme::join(names),
                program_.replicas.empty() ? "; one on several ranks has to be declared as replicated" : "");
    }
    if (!has_microbatch(action.kind)) return;
    demand(action.microbatch >= 0 && action.microbatch < program_.num_microbatches, place,
           "micro-batches are 0 to ", program_.num_microbatches - 1);
    const int holder = holders_.rank_of(action.stage, action.microbatch);
    demand(program_.replicas.empty() || holder == Holders::kNobody || holder == rank, place, "micro-batch ",
           action.microbatch, " of the stage runs on rank ", holder);
  }

  void take(const Place& place, Cell cell) {
    const Action& action = place.action;
    Holding& holding = holdings_[{action.stage, static_cast<int>(place.rank)}];
    demand(!holding.finished, place, "nothing may follow the stage's STEP");
    demand(may_run_together(cell), place, "cannot run together with the rest of ", to_text(cell));
    demand(!waits_for_itself(cell), place, "cannot run with the rest of ", to_text(cell),
           "; a backward begins when its micro-batch's forward is over");
    if (!has_microbatch(action.kind)) {
      demand(action.microbatch == Action::kNoMicrobatch, place, "belongs to no micro-batch");
      return of_stage(holding, place);
    }
    of_microbatch(holding, place);
  }

  void of_stage(Holding& holding, const Place& place) const {
    switch (place.action.kind) {
      case ActionKind::kUnshard:
        demand(!holding.unsharded, place, "the stage's weights are gathered already");
        holding.unsharded = true;
        return;
      case ActionKind::kReshard:
        demand(holding.unsharded, place, "the stage's weights are not gathered");
        holding.unsharded = false;
        return;
      case ActionKind::kReduceGrad:
        return reduce(holding, place);
      default:
        return step(holding, place);
    }
  }

  void of_microbatch(Holding& holding, const Place& place) {
    Work& work = work_[holders_.index(place.action.stage, place.action.microbatch)];
    if (is_compute(place.action.kind) || place.action.kind == ActionKind::kRecompute) {
      demand(!holding.shards || holding.unsharded, place,
             "the stage's weights are not gathered; RESHARD comes too early or UNSHARD too late");
    }
    switch (place.action.kind) {
      case ActionKind::kForward:
        return forward(work, holding, place);
      case ActionKind::kBackward:
        backward_input(work, holding, place);
        return backward_weight(work, holding, place);
      case ActionKind::kBackwardInput:
        return backward_input(work, holding, place);
      case ActionKind::kBackwardWeight:
        demand(work.input_gradient, place, "weight gradient before the micro-batch's input gradient");
        demand(!work.weight_gradient, place, "the micro-batch has had its weight gradient already");
        return backward_weight(work, holding, place);
      case ActionKind::kRecompute:
        demand(work.forward, place, "recomputed before the micro-batch's forward");
        demand(!work.input_gradient, place, "recomputed after the micro-batch's backward");
        demand(!work.recomputed, place, "the micro-batch is recomputed already");
        work.recomputed = true;
        return;
      default:
        demand(form_ != Form::kOrder, place, "an order of computations has no transfers");
        return is_send(place.action.kind) ? send(work, place) : receive(work, place);
    }
  }

  void forward(Work& work, const Holding& holding, const Place& place) const {
    demand(!work.forward, place, "the micro-batch has had its forward already");
    demand(holding.reduced == 0 || is_asynchronous(), place, "comes after the stage's REDUCE_GRAD");
    if (place.action.stage > 0) {
      demand_neighbour(place, place.action.stage - 1, work.received_input, &Work::forward, "input");
    }
    work.forward = true;
  }

  void backward_input(Work& work, const Holding& holding, const Place& place) const {
    demand(work.forward, place, "backward before the micro-batch's forward");
    demand(!work.input_gradient, place, "the micro-batch has had its backward already");
    demand(holding.reduced == 0 || is_asynchronous(), place, "comes after the stage's REDUCE_GRAD");
    if (!holders_.is_last(place.action.stage)) {
      demand_neighbour(place, place.action.stage + 1, work.received_gradient, &Work::input_gradient,
                       "gradient of its output");
      demand(form_ == Form::kOrder || work.sent_output || !crosses(place, place.action.stage + 1), place,
             "frees the stage's output, which has not been sent");
    }
    work.input_gradient = true;
  }

  void backward_weight(Work& work, Holding& holding, const Place& place) const {
    demand(!holding.being_reduced, place,
           "comes between the stage's REDUCE_GRAD and its STEP, and would change",
           " the gradients that are being reduced");
    work.weight_gradient = true;
    ++holding.backwards;
  }

  /// The input from the neighbour stage: computed before on this rank, or received.
  void demand_neighbour(const Place& place, int stage, bool received, bool Work::*made,
                        const char* what) const {
    const int microbatch = place.action.microbatch;
    if (crosses(place, stage)) {
      demand(form_ == Form::kOrder || received, place, "its ", what, " has not been received");
    } else if (holders_.rank_of(stage, microbatch) != Holders::kNobody) {
      demand(work_[holders_.index(stage, microbatch)].*made, place, "its ", what, ", made by stage ", stage,
             " on the same rank, is not there yet");
    }
  }

  void send(Work& work, const Place& place) const {
    const bool forward = place.action.kind == ActionKind::kSendForward;
    check_ends(place, Holders::receiver_stage(place.action));
    bool& sent = forward ? work.sent_output : work.sent_gradient;
    demand(forward ? work.forward : work.input_gradient, place, "sent before it is made");
    demand(!sent, place, "sent already");
    demand(!forward || !work.input_gradient, place, "sent after the micro-batch's backward, which freed it");
    sent = true;
  }

  void receive(Work& work, const Place& place) const {
    const bool forward = place.action.kind == ActionKind::kReceiveForward;
    check_ends(place, forward ? place.action.stage - 1 : place.action.stage + 1);
    bool& received = forward ? work.received_input : work.received_gradient;
    demand(!received, place, "received already");
    demand(!(forward ? work.forward : work.input_gradient), place, "received after it was used");
    received = true;
  }

  /// The other end of a transfer must be an existing stage on another rank.
  void check_ends(const Place& place, int other) const {
    demand(other >= 0 && other < program_.num_stages, place,
           "there is no stage at the other end; stages are 0 to ", program_.num_stages - 1);
    const int rank = holders_.rank_of(other, place.action.microbatch);
    demand(rank != Holders::kNobody, place, "no rank runs micro-batch ", place.action.microbatch,
           " on stage ", other);
    demand(rank != static_cast<int>(place.rank), place, "stage ", other,
           " is on the same rank, where tensors are passed on without a transfer");
  }

  bool crosses(const Place& place, int stage) const {
    const int other = holders_.rank_of(stage, place.action.microbatch);
    return other != Holders::kNobody && other != static_cast<int>(place.rank);
  }

  /// Backwards of the stage on this rank up to and including the next update.
  int due(const Holding& holding) const {
    if (!is_asynchronous()) return program_.replicas.empty() ? program_.num_microbatches : holding.share;
    return std::min(holding.share, (holding.updates + 1) * program_.update_every);
  }

  void reduce(Holding& holding, const Place& place) const {
    const int expected = due(holding);
    demand(holding.reduced < expected, place, "the stage's gradients are reduced already");
    demand(holding.backwards == expected, place, "only ", holding.backwards, " of ", expected,
           " backwards of the stage come before it");
    holding.reduced = expected;
    holding.being_reduced = true;
  }

  void step(Holding& holding, const Place& place) const {
    demand(holding.reduced == due(holding), place, "the stage's gradients are not reduced yet");
    holding.being_reduced = false;
    ++holding.updates;
    holding.finished = !is_asynchronous() || holding.reduced == holding.share;
  }

  void check_complete(int stage) const {
    const std::vector<int>& ranks = stages_[at(stage)];
    require(!ranks.empty(), "program '", program_.name, "': no rank has stage ", stage);
    for (const int rank : ranks) {
      const auto found = holdings_.find({stage, rank});
      require(found == holdings_.end() || !found->second.unsharded, "program '", program_.name, "': rank ",
              rank, ", end: ", stage, "RESHARD is missing");
      if (has_updates()) {
        require(found != holdings_.end() && found->second.finished, "program '", program_.name, "': rank ",
                rank, ", end: ", stage, "STEP is missing");
      }
    }
    for (int microbatch = 0; microbatch < program_.num_microbatches; ++microbatch) {
      check_complete(stage, microbatch);
    }
  }

  void check_complete(int stage, int microbatch) const {
    const Work& work = work_[holders_.index(stage, microbatch)];
    const int holder = holders_.rank_of(stage, microbatch);
    const int rank = holder == Holders::kNobody ? stages_[at(stage)].front() : holder;
    const auto demand_done = [&](bool done, ActionKind kind) {
      require(done, "program '", program_.name, "': rank ", rank,
              ", end: ", to_text(Action{stage, kind, microbatch}), " is missing");
    };
    demand_done(work.forward, ActionKind::kForward);
    demand_done(work.input_gradient, ActionKind::kBackward);
    demand_done(work.weight_gradient, ActionKind::kBackwardWeight);
    if (form_ == Form::kOrder) return;
    demand_done(work.sent_gradient || !holders_.crosses({stage, ActionKind::kBackward, microbatch}),
                ActionKind::kSendBackward);
  }

  template <class... Parts>
  void demand(bool condition, const Place& place, const Parts&... reason) const {
    if (!condition) reject_at(program_, place, reason...);
  }

  const Program& program_;
  const Holders& holders_;
  const Form form_;
  std::vector<Work> work_;
  std::vector<std::vector<int>> stages_;             ///< ranks of each stage
  std::map<std::pair<int, int>, Holding> holdings_;  ///< by stage and rank
};

}  // namespace

void check_lists(const Program& program, const Holders& holders, Form form) {
  ListCheck(program, holders, form).run();
}

}  // namespace trireme::schedule
