#include <memory>

#include "cli/command.h"
#include "cli/numbers.h"

namespace trireme::cli {

void declare_ranks(CLI::App& app, RankArguments& ranks) {
  app.add_option("file", ranks.file, "Configuration of the run")->type_name("FILE.toml")->required();
  app.add_option("-n,--nproc", ranks.num_ranks, "Processes to train over (default: 1)")
      ->type_name("N")
      ->check(above_zero());
  app.add_option("--servers", ranks.num_servers,
                 "Servers to start with them, for parallel.mode = \"ps\" (default: none)")
      ->type_name("N")
      ->check(above_zero());
  app.add_option("--set", ranks.overrides, "Override one key of the file: optimizer.lr=0.1")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
}

Command train_command(std::function<int(const TrainArguments&)> run) {
  const auto declare = [run = std::move(run)](CLI::App& app) -> std::function<int()> {
    auto train = std::make_shared<TrainArguments>();
    declare_ranks(app, train->ranks);
    app.add_flag("--resume", train->resume, "Resume from the newest checkpoint of the run");
    app.add_option("--max-restarts", train->max_restarts,
                   "Restarts from the last checkpoint when a rank fails")
        ->type_name("R")
        ->check(zero_or_more());
    app.add_flag("--elastic", train->elastic,
                 "Ranks that survive a failure keep running; --max-restarts are then new processes");
    app.add_option("--min-ranks", train->min_ranks, "Elastic: fewest ranks to continue with (default: N)")
        ->type_name("M")
        ->check(above_zero());
    app.add_option("--spares", train->num_spares, "Elastic: processes that wait for a failed rank's place")
        ->type_name("K")
        ->check(zero_or_more());
    app.add_option("--trace", train->trace, "Trace all ranks for Perfetto (default: trace.json, by the run)")
        ->type_name("[FILE]")
        ->expected(0, 1);
    app.add_option("--timeline", train->timeline, "Draw three steps as planned and as measured, by the run")
        ->type_name("FILE.html");
    app.add_option(
           "--plan", train->plan,
           "Run as a plan says: what trireme plan --toml printed, before --set; auto: choose the fastest")
        ->type_name("FILE.toml|auto");
    app.add_option("--metrics-port", train->metrics_port,
                   "The launcher answers GET /metrics, for Prometheus, with a token; 0: a free one")
        ->type_name("P");
    app.add_option("--metrics-token-file", train->metrics_token_file,
                   "With the token of the metrics, made where it is missing (default: a new token, printed)")
        ->type_name("F");
    app.add_option("--trace-steps", train->trace_steps, "Trace only some steps: 100:120")->type_name("STEPS");
    return [train, run] { return run(*train); };
  };
  return {.name = "train",
          .summary = "Train a model as a configuration file says",
          .usage = "FILE.toml [OPTIONS]",
          .examples =
              "  trireme train examples/fashion_mnist.toml -n 2\n"
              "  trireme train examples/fashion_mnist.toml --set train.epochs=1 --set optimizer.lr=0.05\n"
              "  trireme train examples/fashion_mnist.toml -n 2 --resume --max-restarts 3\n"
              "  trireme train runs/fashion_mnist -n 2 --resume\n"
              "  trireme train examples/fashion_mnist.toml -n 4 --elastic --min-ranks 2 --spares 1\n"
              "  trireme train examples/ps_fashion_mnist.toml -n 2 --servers 2\n"
              "  trireme train examples/quick.toml -n 2 --trace --trace-steps 20:40\n"
              "  trireme train examples/resnet18_pipeline.toml -n 2 --timeline timeline.html\n"
              "  trireme train examples/gpt_char.toml --set data.path=TEXT.txt -n 4 --plan plan.toml\n"
              "  mpirun -n 2 trireme train examples/fashion_mnist.toml\n",
          .declare = declare};
}

}  // namespace trireme::cli
