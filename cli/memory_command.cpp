#include <memory>

#include "cli/command.h"
#include "cli/numbers.h"

namespace trireme::cli {

Command memory_command(std::function<int(const MemoryArguments&)> run) {
  const auto declare = [run = std::move(run)](CLI::App& app) -> std::function<int()> {
    auto given = std::make_shared<MemoryArguments>();
    app.add_option("file", given->file, "Configuration of the run")->type_name("FILE.toml")->required();
    app.add_option("-n,--nproc", given->num_ranks, "Ranks of the run, none of which is started (default: 1)")
        ->type_name("N")
        ->check(above_zero());
    app.add_option("--set", given->overrides, "Override one key of the file: parallel.zero=2")
        ->type_name("KEY=VALUE")
        ->expected(1)
        ->take_all();
    app.add_option("--limit", given->limit_gib,
                   "GiB that the process of a rank may have (default: its share of what this host has left)")
        ->type_name("GIB")
        ->check(above_zero());
    app.add_flag("--json", given->json, "The modes as JSON");
    return [given, run] { return run(*given); };
  };
  return {.name = "memory",
          .summary = "Estimate the memory of a rank, as configured and in other modes, before a run",
          .usage = "FILE.toml [OPTIONS]",
          .examples =
              "  trireme memory examples/gpt_char.toml --set data.path=TEXT.txt -n 2\n"
              "  trireme memory examples/gpt_char.toml --set data.path=TEXT.txt -n 8 --limit 4 --set "
              "model.layers=48\n"
              "  trireme memory examples/resnet18.toml -n 4 --set parallel.zero=2 --json\n",
          .declare = declare};
}

}  // namespace trireme::cli
