#include "trireme/train/run/internal/held_run.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "trireme/comm/elastic.h"

namespace trireme::train {
namespace {

constexpr const char* kLeaving = "-1";

/// The host of each rank; ids of processes begin with it. Before a world ends, hosts that leave the job count
/// as one. So another host gets a copy of all their state.
std::vector<int> hosts_of(comm::Context& context, bool world_ends) {
  const std::string& member = context.environment().member;
  const bool leaves = world_ends && comm::host_leaves(context);
  std::vector<int> hosts;
  for (const std::string& host :
       context.world().all_gather_text(leaves ? kLeaving : member.substr(0, member.find('.'))))
    hosts.push_back(std::stoi(host));
  return hosts;
}

bool is_changed_in_forward(const StatePart& part) { return part.changes != ChangesIn::kUpdate; }

}  // namespace

HeldRun::HeldRun(RunMemory& memory, Trainer& trainer, const Progress& progress, comm::Context& context)
    : memory_(memory),
      trainer_(trainer),
      progress_(progress),
      context_(context),
      every_steps_(trainer.plan().config().checkpoint.in_memory_every_steps) {
  const checkpoint::Shards mine = state_to_save(trainer_, progress_);
  names_ = checkpoint::names_of_all(context_.world(), mine);
  if (every_steps_ > 0) copies_.emplace(context_.world(), mine, hosts_of(context_, /*world_ends=*/false));
  changes_in_forward_ = std::ranges::any_of(trainer_.state(), [](const StatePart& part) {
    return is_changed_in_forward(part) && !part.shards.empty();
  });
}

void HeldRun::before_first_step() {
  if (trainer_.steps_done() == 0) return;
  if (every_steps_ > 0) hand_over(/*world_ends=*/false);
  context_.world().barrier();  // no rank drops the source of the restored state before all ranks have it
}

void HeldRun::before_step() {
  memory_.forget_own();
  if (!changes_in_forward_) return;
  before_step_.clear();
  step_before_ = trainer_.steps_done();
  for (StatePart& part : trainer_.state()) {
    if (!is_changed_in_forward(part)) continue;
    for (checkpoint::Shard& shard : part.shards) {
      shard.tensor = shard.tensor.clone();
      before_step_.push_back(std::move(shard));
    }
  }
}

void HeldRun::after_step() {
  if (every_steps_ == 0 || trainer_.steps_done() % every_steps_ != 0 || !trainer_.drained()) return;
  hand_over(/*world_ends=*/false);
}

void HeldRun::hand_over(bool world_ends) {
  const telemetry::OwnWork work(context_.status(), "copying the state to the memory of another rank");
  trainer_.complete_state();
  const checkpoint::Shards mine = state_to_save(trainer_, progress_);
  if (!copies_ || world_ends) copies_.emplace(context_.world(), mine, hosts_of(context_, world_ends));
  checkpoint::HeldState copy = copies_->copy(mine, trainer_.steps_done());
  copy.world = context_.environment().restart_count;
  memory_.keep_copy(std::move(copy));
  context_.world().barrier();  // every rank has its copy
  memory_.forget_older_copies();
}

void HeldRun::keep_own() noexcept {
  try {
    const std::optional<std::int64_t> step = trainer_.whole_step();
    if (!step) return;
    trainer_.complete_own_state();
    checkpoint::HeldState state{.step = *step,
                                .world = context_.environment().restart_count,
                                .shards = state_to_save(trainer_, progress_),
                                .names = names_};
    std::map<std::string, at::Tensor> before;
    for (const checkpoint::Shard& shard : before_step_) {
      if (step_before_ == *step) before.emplace(shard.name, shard.tensor);  // otherwise the step is complete
    }
    for (checkpoint::Shard& shard : state.shards) {
      if (shard.offloaded_storage) return;  // offloaded storage ends with the trainer
      if (const auto found = before.find(shard.name); found != before.end()) shard.tensor = found->second;
    }
    memory_.keep(std::move(state));
  } catch (const std::exception&) {  // a copy or a checkpoint is restored instead
  }
}

}  // namespace trireme::train
