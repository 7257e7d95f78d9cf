#include "cli/train.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "cli/launch/program_path.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/comm/launch_environment.h"
#include "trireme/train/run.h"
#include "trireme/train/run_config.h"
#include "trireme/train/stop_request.h"

namespace trireme::cli {
namespace {

std::vector<std::string> launch_words(const TrainArguments& train) {
  std::vector<std::string> words = {find_own_program("trireme"),
                                    "launch",
                                    "-n",
                                    text(train.num_ranks),
                                    "--max-restarts",
                                    text(train.max_restarts),
                                    "--",
                                    find_own_program("trireme-torch"),
                                    "train",
                                    train.file};
  for (const auto& assignment : train.overrides) {
    words.push_back("--set");
    words.push_back(assignment);
  }
  if (train.resume) words.push_back("--resume");
  return words;
}

[[noreturn]] void become_launcher(const TrainArguments& train) {
  auto words = launch_words(train);
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::cout.flush();
  ::execv(argv[0], argv.data());
  throw InternalError(text("cannot start ", words.front(), ": ", std::strerror(errno)));
}

int run_as_rank(const TrainArguments& train, const train::RunConfig& config) {
  const train::StopRequest stop;
  const auto context = comm::Context::from_environment(config.comm);
  const auto start = train.resume ? train::RunStart::kResume : train::RunStart::kFresh;
  return train::run_training(config, *context, start, &stop).exit_code;
}

}  // namespace

int run_train(const TrainArguments& train) {
  const auto environment = comm::read_launch_environment();
  const bool launched = environment.launcher != "none";
  require(!launched || train.num_ranks == 0 || train.num_ranks == environment.world_size, "-n is ",
          train.num_ranks, ", but another launcher (", environment.launcher, ") has started ",
          environment.world_size, " rank(s) already: leave -n out");
  require(train.max_restarts == 0 || (!launched && train.num_ranks > 1),
          "--max-restarts needs -n N with N > 1: a launcher that outlives the ranks");
  const auto config = train::load_run_config(train.file, train.overrides);
  const bool launches = !launched && train.num_ranks > 1;
  train::check_run_config(config, launches ? train.num_ranks : environment.world_size);
  if (launches) become_launcher(train);
  return run_as_rank(train, config);
}

}  // namespace trireme::cli
