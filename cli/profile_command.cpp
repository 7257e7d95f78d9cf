#include <memory>

#include "cli/command.h"
#include "cli/numbers.h"

namespace trireme::cli {

Command profile_command(std::function<int(const ProfileArguments&)> run) {
  const auto declare = [run = std::move(run)](CLI::App& app) -> std::function<int()> {
    auto profile = std::make_shared<ProfileArguments>();
    app.add_option("FILE.toml", profile->file, "The run's configuration")->required();
    app.add_option("--set", profile->overrides, "Overrides a key of the file")->type_name("KEY=VALUE");
    app.add_option("--samples", profile->samples, "Samples of a micro-batch (default: the configuration's)")
        ->type_name("N")
        ->check(above_zero());
    app.add_option("--repeats", profile->repeats,
                   "Times that each layer runs; the median counts (default: 5)")
        ->type_name("N")
        ->check(above_zero());
    app.add_option("--output", profile->output, "Writes the profile that trireme plan reads")
        ->type_name("FILE.csv");
    app.add_flag("--json", profile->json, "The layers as JSON");
    return [profile, run] { return run(*profile); };
  };
  return {.name = "profile",
          .summary = "Time each layer of a model on this machine",
          .usage = "FILE.toml [OPTIONS]",
          .examples =
              "  trireme profile examples/resnet18.toml --samples 16\n"
              "  trireme profile examples/resnet18.toml --output resnet18.csv\n"
              "  trireme plan --profile resnet18.csv --workers 2 --bandwidth 1e9\n",
          .declare = declare};
}

}  // namespace trireme::cli
