#include <vector>

#include "trireme/base/error.h"
#include "trireme/schedule/program.h"

namespace trireme::schedule {
namespace {

/// Where an action stands, for messages.
struct Place {
  std::size_t rank = 0;
  std::size_t position = 0;
  Action action;
  std::string describe() const { return text("rank ", rank, ", position ", position, ", ", to_text(action)); }
};

/// What has been done for one stage so far.
struct StageProgress {
  static constexpr std::size_t kNobody = static_cast<std::size_t>(-1);
  std::size_t rank = kNobody;
  std::vector<char> forward_done, backward_done;
  int backwards = 0;
  bool reduced = false, stepped = false;
};

class Validator {
 public:
  explicit Validator(const Program& program) : program_(program) {
    require(program.num_stages >= 1 && program.num_microbatches >= 1 && !program.ranks.empty(), "program '",
            program.name, "' needs at least 1 stage, 1 micro-batch and 1 rank, found ", program.num_stages,
            ", ", program.num_microbatches, " and ", program.ranks.size());
    const auto microbatches = static_cast<std::size_t>(program.num_microbatches);
    stages_.resize(static_cast<std::size_t>(program.num_stages));
    for (StageProgress& stage : stages_) {
      stage.forward_done.resize(microbatches);
      stage.backward_done.resize(microbatches);
    }
  }

  void run() {
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      const std::vector<Action>& actions = program_.ranks[rank];
      for (std::size_t i = 0; i < actions.size(); ++i) take({rank, i, actions[i]});
    }
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) check_complete(stage);
  }

 private:
  void take(const Place& place) {
    const Action& action = place.action;
    demand(action.stage >= 0 && action.stage < program_.num_stages, place, "stages are 0 to ",
           program_.num_stages - 1);
    StageProgress& stage = stages_[static_cast<std::size_t>(action.stage)];
    if (stage.rank == StageProgress::kNobody) stage.rank = place.rank;
    demand(stage.rank == place.rank, place, "stage ", action.stage, " belongs to rank ", stage.rank);
    demand(!stage.stepped, place, "nothing may follow the stage's STEP");
    if (has_microbatch(action.kind)) {
      demand(action.microbatch >= 0 && action.microbatch < program_.num_microbatches, place,
             "micro-batches are 0 to ", program_.num_microbatches - 1);
    } else {
      demand(action.microbatch == Action::kNoMicrobatch, place, "belongs to no micro-batch");
    }
    switch (action.kind) {
      case ActionKind::kForward:
        return forward(stage, place);
      case ActionKind::kBackward:
        return backward(stage, place);
      case ActionKind::kReduceGrad:
        return reduce(stage, place);
      case ActionKind::kStep:
        return step(stage, place);
    }
  }

  void forward(StageProgress& stage, const Place& place) {
    char& done = stage.forward_done[static_cast<std::size_t>(place.action.microbatch)];
    demand(!done, place, "the micro-batch has had its forward already");
    demand(!stage.reduced, place, "comes after the stage's REDUCE_GRAD");
    done = 1;
  }

  void backward(StageProgress& stage, const Place& place) {
    const auto microbatch = static_cast<std::size_t>(place.action.microbatch);
    demand(stage.forward_done[microbatch], place, "backward before the micro-batch's forward");
    demand(!stage.backward_done[microbatch], place, "the micro-batch has had its backward already");
    demand(!stage.reduced, place, "comes after the stage's REDUCE_GRAD");
    stage.backward_done[microbatch] = 1;
    ++stage.backwards;
  }

  void reduce(StageProgress& stage, const Place& place) {
    demand(!stage.reduced, place, "the stage's gradients are reduced already");
    demand(stage.backwards == program_.num_microbatches, place, "only ", stage.backwards, " of ",
           program_.num_microbatches, " backwards of the stage come before it");
    stage.reduced = true;
  }

  void step(StageProgress& stage, const Place& place) {
    demand(stage.reduced, place, "the stage's gradients are not reduced yet");
    stage.stepped = true;
  }

  /// What is missing shows itself at the latest as a missing STEP, as everything else comes before it.
  void check_complete(std::size_t number) const {
    const StageProgress& stage = stages_[number];
    require(stage.rank != StageProgress::kNobody, "program '", program_.name, "': no rank has stage ",
            number);
    require(stage.stepped, "program '", program_.name, "': rank ", stage.rank, ", end: ", number,
            "STEP is missing");
  }

  template <class... Parts>
  void demand(bool condition, const Place& place, const Parts&... reason) const {
    if (!condition) {
      throw InvalidArgument(text("program '", program_.name, "': ", place.describe(), ": ", reason...));
    }
  }

  const Program& program_;
  std::vector<StageProgress> stages_;
};

}  // namespace

void validate(const Program& program) { Validator(program).run(); }

}  // namespace trireme::schedule
