// The commands of `trireme` without tensors, and the start of `trireme-torch` for the others.

#include "cli/light_commands.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "cli/launch/program_path.h"
#include "cli/launch/shared_libraries.h"
#include "cli/version.h"
#include "trireme/base/error.h"

namespace trireme::cli {
namespace {

int hand_over(const Arguments& arguments) {
  const std::string program = find_own_program("trireme-torch");
  require_libraries(program);
  std::vector<std::string> words = {"trireme-torch"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  // Loading libtorch takes a while. Until then, Ctrl-C stays pending for the program that handles it
  // (torch_main.cpp).
  sigset_t both;
  sigemptyset(&both);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&both, signal);
  ::sigprocmask(SIG_BLOCK, &both, nullptr);
  ::execv(program.c_str(), argv.data());
  throw InternalError(text("cannot start ", program, ": ", std::strerror(errno)));
}

std::vector<Command> commands(const Program& program, const Arguments& arguments) {
  return {train_command([arguments](const TrainArguments&) { return hand_over(arguments); }),
          verify_command([arguments](const VerifyArguments&) { return hand_over(arguments); }),
          checkpoint_command([arguments](const CheckpointArguments&) { return hand_over(arguments); }),
          data_command([arguments](const DataArguments&) { return hand_over(arguments); }),
          runs_command(),
          autopsy_command(),
          top_command(),
          profile_command([arguments](const ProfileArguments&) { return hand_over(arguments); }),
          memory_command([arguments](const MemoryArguments&) { return hand_over(arguments); }),
          estimate_command([arguments](const EstimateArguments&) { return hand_over(arguments); }),
          find_batch_command([arguments](const FindBatchArguments&) { return hand_over(arguments); }),
          plan_command([arguments](const PlanArguments&) { return hand_over(arguments); }),
          launch_command(arguments),
          serve_coordinator_command(),
          serve_params_command(),
          ps_command(),
          doctor_command(),
          bench_command(),
          topology_command(),
          schedule_command(),
          simulate_command(),
          backends_command([arguments](const BackendsArguments&) { return hand_over(arguments); }),
          completion_command(program, shipped_settings)};
}

}  // namespace

Program light_program() {
  return {.name = "trireme",
          .about = "Trireme trains neural networks over many processes, devices and hosts.",
          .version = "trireme " + version_line(),
          .examples =
              "  trireme doctor                                  what this machine can do\n"
              "  trireme train examples/fashion_mnist.toml -n 2  train over two processes\n"
              "  trireme launch -n 4 -- ./my_program             start a program as four ranks\n"
              "  trireme COMMAND --help                          options and examples of a command\n",
          .commands = commands};
}

}  // namespace trireme::cli
