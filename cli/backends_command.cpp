#include <memory>

#include "cli/command.h"

namespace trireme::cli {

Command backends_command(std::function<int(const BackendsArguments&)> run) {
  const auto declare = [run = std::move(run)](CLI::App& app) -> std::function<int()> {
    auto backends = std::make_shared<BackendsArguments>();
    app.add_flag("--json", backends->json, "As JSON");
    return [backends, run] { return run(*backends); };
  };
  return {.name = "backends",
          .summary = "List the communication backends, and why one is not available",
          .usage = "[OPTIONS]",
          .examples = "  trireme backends\n  trireme backends --json\n",
          .declare = declare};
}

}  // namespace trireme::cli
