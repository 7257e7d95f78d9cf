// Join for uneven inputs. Ranks with batches announce each event in one small all-reduce over all ranks. A
// rank without a batch contributes zeros and follows.
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/parallel/data/internal/joins.h"
#include "trireme/parallel/data/internal/reducer.h"

namespace trireme::parallel {
namespace {

/// The contribution of a rank; all fields are reduced to their maxima.
struct Words {
  int first_pass = 0;  ///< of N wrappers: N - the number of the wrapper whose pass begins
  int last_pass = 0;   ///< the number of the wrapper whose pass begins, from 1
  int at_next = 0;
  int has_batch = 0;  ///< size of the group - rank
};

/// The reduced result, equal on all ranks.
struct Agreement {
  int pass = -1;          ///< the wrapper whose synchronised backward pass begins; -1: none
  int rank_of_batch = 0;  ///< the lowest rank with a batch; the group's size if there is none
};

Agreement agree(comm::Group& group, int num_wrappers, const Words& mine) {
  at::Tensor words = at::zeros({4}, at::kInt);
  auto* word = words.mutable_data_ptr<int>();
  std::ranges::copy(std::array{mine.first_pass, mine.last_pass, mine.at_next, mine.has_batch}, word);
  group.all_reduce(words, comm::ReduceOp::kMax);
  const int first = num_wrappers - word[0], last = word[1] - 1;
  if (last >= 0 && word[2] != 0) {
    throw CommError(text("in Join, some ranks of group '", group.name(),
                         "' run a synchronised backward pass while others are at next(): every rank with a "
                         "batch has to run the same number of them per step"));
  }
  if (last >= 0 && first != last) {
    throw CommError(text("in Join, ranks of group '", group.name(), "' run passes of wrapper ", first,
                         " and of wrapper ", last,
                         " at the same time: every rank with a batch has to run them in the same order"));
  }
  return {.pass = last, .rank_of_batch = group.size() - word[3]};
}

bool share_ranks(const std::vector<int>& one, const std::vector<int>& other) {
  return std::ranges::count_if(one, [&](int rank) { return std::ranges::find(other, rank) != other.end(); }) >
         1;
}

}  // namespace

std::shared_ptr<JoinsUnderWay> joins_of_this_thread() {
  thread_local const auto joins = std::make_shared<JoinsUnderWay>();
  return joins;
}

void reject_beside_join(const JoinsUnderWay& joins, const comm::Group& group, const char* what,
                        const char* advice) {
  const bool is_beside = std::ranges::any_of(
      joins, [&](const JoinUnderWay& each) { return share_ranks(each.world_ranks, group.world_ranks()); });
  require(!is_beside, what, " of group '", group.name(),
          "' during a Join over the same ranks: a rank without a batch takes part in that Join alone; ",
          advice);
}

DistributedDataParallel::Join::Join(DistributedDataParallel& ddp, std::function<void()> follow)
    : Join(std::vector<Joined>{{ddp, std::move(follow)}}) {}

DistributedDataParallel::Join::Join(std::vector<Joined> joined)
    : joined_(std::move(joined)), under_way_(joins_of_this_thread()) {
  require(!joined_.empty(), "a Join needs at least one DistributedDataParallel");
  const comm::Group& group = reducer(0).group;
  reject_beside_join(*under_way_, group, "a second Join");
  for (std::size_t i = 0; i < joined_.size(); ++i) {
    require(reducer(i).group.world_ranks() == group.world_ranks(),
            "all wrappers of a Join have to reduce over the same ranks; found groups '", group.name(),
            "' and '", reducer(i).group.name(), "'");
    require((joined_[i].follow == nullptr) == (joined_[0].follow == nullptr),
            "in a Join either all wrappers have a function that follows, or none has");
    for (std::size_t j = 0; j < i; ++j)
      require(&reducer(i) != &reducer(j), "a Join has the same DistributedDataParallel twice");
  }
  for (std::size_t i = 0; i < joined_.size(); ++i) {
    reducer(i).before_pass = [this, i] { announce(i); };
    reducer(i).compares = joined_[i].follow != nullptr;
  }
  under_way_->push_back({.join = this, .world_ranks = group.world_ranks()});
}

DistributedDataParallel::Join::~Join() {
  std::erase_if(*under_way_, [this](const JoinUnderWay& each) { return each.join == this; });
  for (std::size_t i = 0; i < joined_.size(); ++i) {
    reducer(i).before_pass = nullptr;
    reducer(i).compares = true;
    reducer(i).root = 0;
  }
}

DistributedDataParallel::Reducer& DistributedDataParallel::Join::reducer(std::size_t number) const {
  return *joined_[number].ddp.reducer_;
}

/// A rank without a batch joins one pass at a time.
void DistributedDataParallel::Join::announce(std::size_t number) const {
  for (std::size_t i = 0; i < joined_.size(); ++i) {
    require(i == number || !reducer(i).is_running(),
            "in Join, a backward pass reaches parameters of wrappers ", i, " and ", number,
            ", which are reduced one after the other; freeze those of one with requires_grad_(false) before "
            "forward");
  }
  const auto wrappers = static_cast<int>(joined_.size()), mine = static_cast<int>(number);
  agree(reducer(0).group, wrappers, {.first_pass = wrappers - mine, .last_pass = mine + 1});
}

/// Runs once on every rank, for each step in which some rank had a batch.
void DistributedDataParallel::Join::end_step() {
  if (!std::exchange(in_step_, false)) return;
  ++steps_;
  if (after_step_) after_step_();
}

bool DistributedDataParallel::Join::next(bool have_batch) {
  for (std::size_t i = 0; i < joined_.size(); ++i) reducer(i).require_finished("Join::next()");
  comm::Group& group = reducer(0).group;
  const auto wrappers = static_cast<int>(joined_.size());
  Agreement agreement =
      agree(group, wrappers, {.at_next = 1, .has_batch = have_batch ? group.size() - group.rank() : 0});
  for (;;) {
    if (agreement.pass >= 0) {
      const auto number = static_cast<std::size_t>(agreement.pass);
      reducer(number).join_reduction(joined_[number].follow);
    } else {
      end_step();
      if (agreement.rank_of_batch == group.size()) break;
      for (std::size_t i = 0; i < joined_.size(); ++i) reducer(i).root = agreement.rank_of_batch;
      in_step_ = true;
      if (have_batch) return true;
    }
    agreement = agree(group, wrappers, {});
  }
  // Ranks that ran out early took no more steps. All copy the state of a rank that took every step.
  for (std::size_t i = 0; i < joined_.size() && joined_[i].follow == nullptr; ++i)
    reducer(i).broadcast_state(reducer(i).root);
  return false;
}

}  // namespace trireme::parallel
