#include <algorithm>
#include <memory>

#include "cli/command.h"
#include "cli/numbers.h"
#include "trireme/base/error.h"

namespace trireme::cli {
namespace {

/// Settings of inspect and verify for URLs.
const std::string kOfUrls = "data.private_redirects";

const std::vector<std::string> kDataActions = {"pack", "inspect", "verify"};

void check_data(const DataArguments& given) {
  const std::string see = "; see: trireme data --help";
  require(std::find(kDataActions.begin(), kDataActions.end(), given.action) != kDataActions.end(),
          "trireme data cannot '", given.action, "'", suggest(given.action, kDataActions), see);
  if (given.action == "pack") {
    require(!given.out.empty(), "trireme data pack needs what to pack, and the folder to pack it into", see);
    require(!given.json, "trireme data pack has no --json", see);
    require(given.tokens.empty() || given.jsonl.empty(), "a file is of --tokens or of --jsonl, not both",
            see);
    require(given.tokens.empty() || given.tokens == "u16" || given.tokens == "u32", "--tokens is '",
            given.tokens, "', expected u16 or u32", see);
    require(given.shard_mib <= 1 << 20, "--shard-mib is ", given.shard_mib, ", expected at most 1048576",
            see);
    require(given.vocabulary == 0 || !given.tokens.empty(), "--vocabulary is for --tokens", see);
    return;
  }
  require(given.out.empty(), "trireme data ", given.action, " takes one path, found also '", given.out, "'",
          see);
  const bool packs = given.force || given.shard_mib != DataArguments().shard_mib || !given.tokens.empty() ||
                     !given.jsonl.empty() || !given.validation.empty() || given.vocabulary != 0;
  require(!packs, "trireme data ", given.action, " takes no options but --json and --set ", kOfUrls, "=true",
          see);
  for (const std::string& setting : given.overrides)
    require(setting.starts_with(kOfUrls), "trireme data ", given.action, " reads no key but ", kOfUrls,
            ", found --set ", setting, see);
}

}  // namespace

Command data_command(std::function<int(const DataArguments&)> run) {
  const auto declare = [run = std::move(run)](CLI::App& app) -> std::function<int()> {
    auto given = std::make_shared<DataArguments>();
    app.add_option("action", given->action, "pack, inspect or verify")->type_name("ACTION")->required();
    app.add_option(
           "from", given->from,
           "pack: a configuration, whose [data] counts, a data set's name, or a file of text; else the "
           "folder or its URL")
        ->type_name("FROM")
        ->required();
    app.add_option("out", given->out, "Folder to pack into (pack)")->type_name("FOLDER");
    app.add_option("--set", given->overrides,
                   "Overrides a key of the configuration (pack; else data.private_redirects)")
        ->type_name("KEY=VALUE");
    app.add_option("--shard-mib", given->shard_mib, "No file is larger (pack; default: 256)")
        ->type_name("M")
        ->check(above_zero());
    app.add_flag("--force", given->force, "Replaces packed data in the folder (pack)");
    app.add_option("--jsonl", given->jsonl, "The file is JSON lines, with texts under FIELD (pack)")
        ->type_name("FIELD");
    app.add_option("--tokens", given->tokens, "The file is token numbers, little-endian: u16 or u32 (pack)")
        ->type_name("TYPE");
    app.add_option("--vocabulary", given->vocabulary,
                   "Tokens that there are (pack --tokens; default: up to the largest)")
        ->type_name("N")
        ->check(above_zero());
    app.add_option("--validation", given->validation,
                   "Text to validate with (pack; default: the last tenth of the other)")
        ->type_name("FILE");
    app.add_flag("--json", given->json, "As JSON (inspect, verify)");
    return [given, run] {
      check_data(*given);
      return run(*given);
    };
  };
  return {
      .name = "data",
      .summary = "Pack data sets and texts into shards, inspect and verify them",
      .usage = "ACTION FROM [FOLDER] [OPTIONS]",
      .examples =
          "  trireme data pack examples/fashion_mnist.toml packed/fashion\n"
          "  trireme data pack image_folder packed/photos --set data.path=photos\n"
          "  trireme data pack book.txt packed/book\n"
          "  trireme data pack corpus.jsonl packed/corpus --jsonl text\n"
          "  trireme data pack train.bin packed/gpt2 --tokens u16 --validation val.bin --vocabulary 50257\n"
          "  trireme data inspect packed/fashion\n"
          "  trireme data verify packed/fashion\n"
          "  trireme train examples/fashion_mnist.toml --set data.name=packed --set "
          "data.path=packed/fashion\n",
      .declare = declare};
}

}  // namespace trireme::cli
