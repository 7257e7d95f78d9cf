#pragma once
// Commands that run over ranks: with -n N a command becomes the launcher of N ranks of itself.

#include <functional>
#include <string>
#include <vector>

namespace trireme::cli {

/// What a command that runs over ranks has in common with the others.
struct RankArguments {
  std::string file;                    ///< the run's configuration
  std::vector<std::string> overrides;  ///< "table.key=value"
  int num_ranks = 0;                   ///< -n; 0: not given
  int num_servers = 0;                 ///< of a parameter server that the launcher starts next to them
};

struct RankPlan {
  int world_size = 1;
  bool launches = false;  ///< this process is to become the launcher
};

/// From the options and from the launcher that may have started this process. A step of Slurm with one task
/// is no launcher: with -n ranks start on this host. Throws InvalidArgument when -n contradicts a launcher.
RankPlan plan_ranks(const RankArguments& arguments);

/// What ranks of a command are started with, besides its RankArguments.
struct RankCommand {
  std::string name;                                      ///< "train"
  std::vector<std::string> options = {};                 ///< of the command: "--resume"
  std::vector<std::string> of_launch = {};               ///< of `launch`: "--no-prefix"
  std::function<std::string()> find_launcher = nullptr;  ///< whose command `launch` is; null: this program
};

/// Becomes the launcher (exec, so that nothing of this process stays behind in it) of N ranks of the command,
/// which are this program.
[[noreturn]] void become_launcher(const RankArguments& arguments, const RankCommand& command);

}  // namespace trireme::cli
