#include "cli/torch_program.h"

#include "cli/backends.h"
#include "cli/checkpoint.h"
#include "cli/data.h"
#include "cli/estimate.h"
#include "cli/find_batch.h"
#include "cli/memory.h"
#include "cli/plan.h"
#include "cli/profile.h"
#include "cli/train.h"
#include "cli/verify.h"
#include "cli/version.h"
#include "trireme/base/text.h"
#include "trireme/train/config/run_config.h"

namespace trireme::cli {
namespace {

/// The keys of our table, then those of the program's own types.
std::vector<Setting> settings_of(const Home& home) {
  std::vector<Setting> settings;
  for (const auto& key : train::config_keys(home.registry))
    settings.push_back({key.name, key.type, key.allowed});
  return settings;
}

std::vector<Command> commands(const Home& home, const Program& program, const Arguments& arguments) {
  return {
      train_command([home](const TrainArguments& train) { return run_train(home, train); }),
      verify_command([home](const VerifyArguments& verify) { return run_verify(home, verify); }),
      checkpoint_command(run_checkpoint),
      data_command([home](const DataArguments& data) { return run_data(home, data); }),
      runs_command(),
      autopsy_command(),
      top_command(),
      profile_command([home](const ProfileArguments& profile) { return run_profile(home, profile); }),
      memory_command([home](const MemoryArguments& memory) { return run_memory(home, memory); }),
      estimate_command([home](const EstimateArguments& estimate) { return run_estimate(home, estimate); }),
      find_batch_command([home](const FindBatchArguments& batch) { return run_find_batch(home, batch); }),
      plan_command([home](const PlanArguments& plan) { return run_plan(home, plan); }),
      launch_command(arguments),
      schedule_command(),
      simulate_command(),
      backends_command(list_backends),
      completion_command(program, [home] { return settings_of(home); })};
}

}  // namespace

Program torch_program(const Home& home) {
  const std::string& name = home.name;
  const std::string version = "trireme " + version_line();
  return {.name = name,
          .about = name == "trireme" ? "The commands of trireme that need tensors, and some that do not."
                                     : text(name, " trains models over many processes, with Trireme."),
          .version = name == "trireme" ? version : text(name, ", ", version),
          .examples = text("  ", name, " train run.toml -n 2   train over two processes\n", "  ", name,
                           " verify run.toml -n 2  see that they compute what one would\n", "  ", name,
                           " COMMAND --help        options and examples of a command\n"),
          .commands = [home](const Program& program, const Arguments& arguments) {
            return commands(home, program, arguments);
          }};
}

}  // namespace trireme::cli
