#include "trireme/train/run/internal/run_start.h"

#include "trireme/base/error.h"
#include "trireme/comm/text_difference.h"
#include "trireme/train/run/internal/on_main.h"

namespace trireme::train {

void check_same_config(const RunConfig& config, comm::Context& context) {
  if (const auto difference = comm::find_text_difference(context.world(), describe(config)))
    throw InvalidArgument("ranks have different configurations: " + difference->describe());
}

std::unique_ptr<RunLock> lock_folder(const RunConfig& config, comm::Context& context, RunStart start) {
  std::unique_ptr<RunLock> lock;
  on_main(context, [&] {
    const RunFolder folder{config.run_folder()};
    if (start == RunStart::kResume && !std::filesystem::exists(folder.root))
      throw no_checkpoint_in(folder.checkpoints());
    lock = std::make_unique<RunLock>(folder, context.log());
    if (start == RunStart::kResume) lock->take_up();
  });
  return lock;
}

bool is_restart(const comm::Context& context, const RunLock& lock) {
  const comm::LaunchEnvironment& environment = context.environment();
  return environment.restart_count > 0 && lock.belongs_to(environment.start_id);
}

TakeUp what_to_take_up(const RunPlan& plan, const comm::Context& context, const RunLock* lock) {
  if (plan.start == RunStart::kResume) return TakeUp::kMustBeThere;
  const bool goes_on = lock != nullptr && is_restart(context, *lock);
  return goes_on ? TakeUp::kWhatIsThere : TakeUp::kNothing;
}

}  // namespace trireme::train
