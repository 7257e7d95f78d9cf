#pragma once
// Commands that run over ranks: with -n N a command becomes the launcher of N ranks of itself.

#include <string>
#include <vector>

namespace trireme::cli {

/// What a command that runs over ranks has in common with the others.
struct RankArguments {
  std::string file;                    ///< the run's configuration
  std::vector<std::string> overrides;  ///< "table.key=value"
  int num_ranks = 0;                   ///< -n; 0: not given
};

struct RankPlan {
  int world_size = 1;
  bool launches = false;  ///< this process is to become the launcher
};

/// From the options and from the launcher that may have started this process. Throws InvalidArgument when -n
/// contradicts that.
RankPlan plan_ranks(const RankArguments& arguments);

/// What ranks of a command are started with, besides its RankArguments.
struct RankCommand {
  std::string name;                         ///< "train"
  std::vector<std::string> options = {};    ///< of the command: "--resume"
  std::vector<std::string> of_launch = {};  ///< of `trireme launch`: "--no-prefix"
};

/// Becomes the launcher of N ranks of the command (exec, so that nothing of libtorch stays behind in it).
[[noreturn]] void become_launcher(const RankArguments& arguments, const RankCommand& command);

}  // namespace trireme::cli
