// Join: ranks that have batches tell those that have none what they do next. Every rank adds its word to one
// small reduction per event; a rank without a batch adds nothing and follows.
#include <ATen/ops/zeros.h>

#include <array>

#include "trireme/base/error.h"
#include "trireme/parallel/data/internal/reducer.h"

namespace trireme::parallel {
namespace {

enum class Event { kNone, kPass, kNext };

/// What the ranks do, as all of them see it.
struct Agreement {
  bool passes = false;    ///< a synchronised backward pass begins
  int rank_of_batch = 0;  ///< the lowest rank that has a batch; the group's size when none has
};

Agreement agree(comm::Group& group, Event event, bool have_batch) {
  at::Tensor words = at::zeros({3}, at::kInt);
  auto* word = words.mutable_data_ptr<int>();
  word[0] = event == Event::kPass ? 1 : 0;
  word[1] = event == Event::kNext ? 1 : 0;
  word[2] = have_batch ? group.size() - group.rank() : 0;
  group.all_reduce(words, comm::ReduceOp::kMax);
  if (word[0] != 0 && word[1] != 0) {
    throw CommError(text("in Join, some ranks of group '", group.name(),
                         "' run a synchronised backward pass while others are at next(): every rank with a "
                         "batch has to run the same number of them per step"));
  }
  return {.passes = word[0] != 0, .rank_of_batch = group.size() - word[2]};
}

}  // namespace

DistributedDataParallel::Join::Join(DistributedDataParallel& ddp, std::function<void()> follow)
    : ddp_(ddp), follow_(std::move(follow)) {
  Reducer& reducer = *ddp_.reducer_;
  require(!reducer.before_pass, "a Join of this DistributedDataParallel is already under way");
  reducer.before_pass = [&reducer] { agree(reducer.group, Event::kPass, false); };
}

DistributedDataParallel::Join::~Join() {
  ddp_.reducer_->before_pass = nullptr;
  ddp_.reducer_->root = 0;
}

bool DistributedDataParallel::Join::next(bool have_batch) {
  Reducer& reducer = *ddp_.reducer_;
  reducer.require_finished("Join::next()");
  Agreement agreement = agree(reducer.group, Event::kNext, have_batch);
  for (;;) {
    if (agreement.passes) {
      reducer.shadow(follow_);
    } else if (agreement.rank_of_batch == reducer.group.size()) {
      // Ranks that ran out early took no more steps: all take over a rank that took every one.
      if (!follow_) reducer.broadcast_state(reducer.root);
      return false;
    } else {
      reducer.root = agreement.rank_of_batch;
      if (have_batch) return true;
    }
    agreement = agree(reducer.group, Event::kNone, false);
  }
}

}  // namespace trireme::parallel
