#include <memory>

#include "cli/command.h"
#include "cli/numbers.h"

namespace trireme::cli {

Command find_batch_command(std::function<int(const FindBatchArguments&)> run) {
  const auto declare = [run = std::move(run)](CLI::App& app) -> std::function<int()> {
    auto given = std::make_shared<FindBatchArguments>();
    declare_ranks(app, given->ranks);
    app.add_option("--most", given->max_samples, "Largest batch to try (default: as far as speed grows)")
        ->type_name("SAMPLES")
        ->check(above_zero());
    app.add_option("--memory-limit", given->memory_limit_gib,
                   "GiB of tensors that a rank may have (default: its share of what the host has left)")
        ->type_name("GIB")
        ->check(above_zero());
    app.add_option("--noise", given->noise_scale,
                   "Gradient noise scale, as the end of a run tells it (default: that of the first steps)")
        ->type_name("SAMPLES")
        ->check(above_zero());
    app.add_flag("--json", given->json, "The batches as JSON");
    return [given, run] { return run(*given); };
  };
  return {
      .name = "find-batch",
      .summary = "Find the batch sizes that are fastest, most efficient, and largest in memory",
      .usage = "FILE.toml [OPTIONS]",
      .examples =
          "  trireme find-batch examples/fashion_mnist.toml -n 2\n"
          "  trireme find-batch examples/gpt_char.toml --set data.path=TEXT.txt -n 2 --most 512 --noise 900\n"
          "  trireme find-batch examples/resnet18.toml -n 2 --memory-limit 4 --json\n",
      .declare = declare};
}

}  // namespace trireme::cli
