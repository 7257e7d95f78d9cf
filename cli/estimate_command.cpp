#include <memory>

#include "cli/command.h"

namespace trireme::cli {

Command estimate_command(std::function<int(const EstimateArguments&)> run) {
  const auto declare = [run = std::move(run)](CLI::App& app) -> std::function<int()> {
    auto given = std::make_shared<EstimateArguments>();
    declare_ranks(app, given->ranks);
    CLI::Option* read = app.add_option("--measurements", given->measurements,
                                       "Read the costs from this file; no rank is started (default: measure)")
                            ->type_name("FILE.json");
    app.add_option("--save", given->save, "Write the measured costs to this file")
        ->type_name("FILE.json")
        ->excludes(read);
    app.add_flag("--json", given->json, "The estimate as JSON");
    return [given, run] { return run(*given); };
  };
  return {.name = "estimate",
          .summary = "Estimate the time and the memory of a step, from measured or saved costs",
          .usage = "FILE.toml [OPTIONS]",
          .examples =
              "  trireme estimate examples/gpt_char.toml --set data.path=TEXT.txt -n 2 --save costs.json\n"
              "  trireme estimate examples/gpt_char.toml --set data.path=TEXT.txt -n 8 --set "
              "parallel.pipeline=4 --measurements costs.json\n"
              "  trireme estimate examples/resnet18.toml -n 2 --json\n",
          .declare = declare};
}

}  // namespace trireme::cli
