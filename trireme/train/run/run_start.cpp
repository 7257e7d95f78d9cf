#include "trireme/train/run/internal/run_start.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/comm/text_difference.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/planner/planned_keys.h"
#include "trireme/train/run/internal/on_main.h"
#include "trireme/train/run/run.h"

namespace trireme::train {

void check_same_config(const RunConfig& config, comm::Context& context, const RunPlan& plan) {
  comm::Group& world = context.world();
  const std::string mine = describe(config);
  const auto difference = comm::find_text_difference(world, mine);
  if (!difference) return;
  const std::string words = "ranks have different configurations: " + difference->describe();
  const bool has_state = plan.memory != nullptr && plan.memory->has_state();
  const std::vector<std::string> of_trained = world.all_gather_text(has_state ? mine : "");
  const auto right = std::ranges::find_if(of_trained, [](const std::string& each) { return !each.empty(); });
  try {
    world.barrier();  // each rank has the texts, before one of them ends this world
  } catch (const CommError&) {
    // A rank has ended it already.
  }
  if (right == of_trained.end() || mine != *right) throw InvalidArgument(words);
  throw CommError(words + "; those that have joined the job with another one leave it");
}

data::DataSource open_data_of(const RunConfig& config, comm::Context& context, const RunPlan& plan) {
  if (plan.data) return *plan.data;
  if (plan.memory != nullptr && plan.memory->data) return *plan.memory->data;
  const telemetry::OwnWork work(context.status(), "opening the data");
  const data::DataSource data = open_data(config, context.log());
  if (plan.memory != nullptr) plan.memory->data = data;
  return data;
}

std::unique_ptr<RunLock> lock_folder(const RunConfig& config, comm::Context& context, RunStart start) {
  std::unique_ptr<RunLock> lock;
  on_main(context, [&] {
    const RunFolder folder{config.run_folder()};
    if (start == RunStart::kResume && !std::filesystem::exists(folder.root))
      throw no_checkpoint_in(folder.checkpoints());
    lock = std::make_unique<RunLock>(folder, context.log());
    if (start == RunStart::kResume) lock->check_existing();
  });
  return lock;
}

bool is_restart(const comm::Context& context, const RunLock& lock) {
  const comm::LaunchEnvironment& environment = context.environment();
  return environment.restart_count > 0 && lock.belongs_to(environment.start_id);
}

ResumeMode resume_mode_of(const RunPlan& plan, const comm::Context& context, const RunLock* lock) {
  if (plan.start == RunStart::kResume) return ResumeMode::kRequired;
  const bool goes_on = lock != nullptr && is_restart(context, *lock);
  return goes_on ? ResumeMode::kIfPresent : ResumeMode::kNever;
}

bool can_run_on(const RunConfig& config, int num_ranks) {
  try {
    resolve_plan(config.parallel.plan == "auto" ? before_planning(config, num_ranks) : config, num_ranks);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

}  // namespace trireme::train
