#include "cli/as_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>

#include "cli/launch/program_path.h"
#include "trireme/base/error.h"
#include "trireme/comm/launch_environment.h"

namespace trireme::cli {
namespace {

/// A Slurm step of one task starts no ranks: it is the shell of `srun --pty bash` or `salloc`.
bool starts_ranks(const comm::LaunchEnvironment& environment) {
  return environment.launcher != "none" && !(environment.launcher == "slurm" && environment.world_size == 1);
}

}  // namespace

RankPlan plan_ranks(const RankArguments& arguments) {
  const auto environment = comm::read_launch_environment();
  const bool launched = starts_ranks(environment);
  require(!launched || arguments.num_ranks == 0 || arguments.num_ranks == environment.world_size, "-n is ",
          arguments.num_ranks, ", but another launcher (", environment.launcher, ") has started ",
          environment.world_size,
          " rank(s) already: leave -n out, or start ranks of this host alone with "
          "trireme launch -n ",
          arguments.num_ranks, " -- ...");
  require(!launched || arguments.num_servers == 0, "--servers is ", arguments.num_servers,
          ", but another launcher (", environment.launcher,
          ") has started this rank already: give --servers to trireme launch, or set ps.coordinator");
  const bool launches = !launched && (arguments.num_ranks > 1 || arguments.num_servers > 0);
  return {.world_size = launches ? std::max(1, arguments.num_ranks) : environment.world_size,
          .launches = launches};
}

void become_launcher(const RankArguments& arguments, const RankCommand& command) {
  const std::string self = own_path();
  std::vector<std::string> all = {command.find_launcher ? command.find_launcher() : self, "launch", "-n",
                                  text(std::max(1, arguments.num_ranks))};
  const auto add = [&](const std::vector<std::string>& words) {
    all.insert(all.end(), words.begin(), words.end());
  };
  if (arguments.num_servers > 0) add({"--servers", text(arguments.num_servers)});
  add(command.of_launch);
  add({"--", self, command.name});
  if (!arguments.file.empty()) add({arguments.file});
  for (const auto& assignment : arguments.overrides) add({"--set", assignment});
  add(command.options);
  std::vector<char*> argv;
  for (auto& word : all) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::cout.flush();
  ::execv(argv[0], argv.data());
  throw InternalError(text("cannot start ", all.front(), ": ", std::strerror(errno)));
}

}  // namespace trireme::cli
