#pragma once
// The seam for commands: one file per command, one row in a table. Commands that need no tensors are in the
// program `trireme`, which does not load libtorch and starts in milliseconds; the others are in
// `trireme-torch` beside it, to which `trireme` hands over by exec. A person only ever types `trireme`.

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace trireme::cli {

struct Command {
  std::string name;
  std::string summary;
  std::string examples;  ///< shown at the end of its help
  /// Declares the options on the sub-command and returns what runs it; that returns an exit code or throws.
  std::function<std::function<int()>(CLI::App&)> declare;
};

/// The commands of this program; light_commands.cpp or torch_commands.cpp, chosen by CMake.
std::vector<Command> commands();

// One per file.
Command launch_command();
Command doctor_command();
Command completion_command();
Command train_command();
Command bench_command();

}  // namespace trireme::cli
