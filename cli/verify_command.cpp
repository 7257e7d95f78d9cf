#include <memory>

#include "cli/command.h"
#include "cli/numbers.h"

namespace trireme::cli {

Command verify_command(std::function<int(const VerifyArguments&)> run) {
  const auto declare = [run = std::move(run)](CLI::App& app) -> std::function<int()> {
    auto verify = std::make_shared<VerifyArguments>();
    declare_ranks(app, verify->ranks);
    app.add_option("--steps", verify->steps, "Steps to compare (default: 3)")
        ->type_name("K")
        ->check(above_zero());
    app.add_flag("--json", verify->json, "The verdict as JSON");
    return [verify, run] { return run(*verify); };
  };
  return {.name = "verify",
          .summary = "Check numerical parity of a parallel run with one rank",
          .usage = "FILE.toml [OPTIONS]",
          .examples =
              "  trireme verify examples/fashion_mnist.toml -n 2\n"
              "  trireme verify examples/fashion_mnist.toml -n 4 --set train.accumulation=4 --steps 5\n"
              "  trireme verify examples/quick.toml -n 2 --json\n",
          .declare = declare};
}

}  // namespace trireme::cli
