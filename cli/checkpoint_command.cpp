#include <algorithm>
#include <memory>

#include "cli/command.h"
#include "trireme/base/error.h"

namespace trireme::cli {
namespace {

const std::vector<std::string> kActions = {"inspect", "verify", "export", "import"};

void check(const CheckpointArguments& given) {
  const std::string see = "; see: trireme checkpoint --help";
  require(std::find(kActions.begin(), kActions.end(), given.action) != kActions.end(),
          "trireme checkpoint cannot '", given.action, "'", suggest(given.action, kActions), see);
  const bool writes = given.action == "export" || given.action == "import";
  require(!writes || !given.out.empty(), "trireme checkpoint ", given.action,
          " needs two paths: what to read, and the .safetensors file to write", see);
  require(writes || given.out.empty(), "trireme checkpoint ", given.action, " takes one path, found also '",
          given.out, "'", see);
  require(writes || !given.force, "trireme checkpoint ", given.action,
          " writes no file, so --force means nothing", see);
  require(given.action == "export" || given.max_shard_bytes == 0, "trireme checkpoint ", given.action,
          " has no --max-shard-size", see);
  require(!writes || !given.json, "trireme checkpoint ", given.action, " has no --json", see);
}

}  // namespace

Command checkpoint_command(std::function<int(const CheckpointArguments&)> run) {
  const auto declare = [run = std::move(run)](CLI::App& app) -> std::function<int()> {
    auto given = std::make_shared<CheckpointArguments>();
    app.add_option("action", given->action, "inspect, verify, export or import")
        ->type_name("ACTION")
        ->required();
    app.add_option("path", given->path, "A run's folder, its checkpoints, one of them, or a file of weights")
        ->type_name("PATH")
        ->required();
    app.add_option("out", given->out, "File to write (export, import)")->type_name("OUT.safetensors");
    app.add_flag("--force", given->force, "Replace OUT.safetensors if it is there");
    app.add_option("--max-shard-size", given->max_shard_bytes,
                   "Several files of at most so much, with an index (export)")
        ->type_name("SIZE")
        ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
    app.add_flag("--json", given->json, "As JSON (inspect, verify)");
    return [given, run] {
      check(*given);
      return run(*given);
    };
  };
  return {.name = "checkpoint",
          .summary = "Inspect and verify checkpoints, export and import weights",
          .usage = "ACTION PATH [OUT.safetensors] [OPTIONS]",
          .examples =
              "  trireme checkpoint inspect runs/quick\n"
              "  trireme checkpoint verify runs/quick/checkpoints/step-00000120\n"
              "  trireme checkpoint export runs/quick quick.safetensors\n"
              "  trireme checkpoint export runs/large large.safetensors --max-shard-size 5GiB\n"
              "  trireme checkpoint import weights.pt weights.safetensors --force\n"
              "  (weights.pt: torch.save(dict(model.state_dict()), \"weights.pt\") in Python)\n",
          .declare = declare};
}

}  // namespace trireme::cli
