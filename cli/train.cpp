#include "cli/train.h"

#include <csignal>
#include <filesystem>

#include "cli/as_ranks.h"
#include "trireme/base/bounded_file.h"
#include "trireme/base/error.h"
#include "trireme/base/stop_notice.h"
#include "trireme/base/stop_request.h"
#include "trireme/base/toml_text.h"
#include "trireme/base/unix_time.h"
#include "trireme/comm/context.h"
#include "trireme/comm/elastic.h"
#include "trireme/comm/launch_environment.h"
#include "trireme/train/config/run_config.h"
#include "trireme/train/planner/planned_keys.h"
#include "trireme/train/run/check_run_folder.h"
#include "trireme/train/run/run.h"

namespace trireme::cli {
namespace {

/// `plan` belongs to `config`. If the run chooses its own plan, it is the one that was checked instead.
int run_as_rank(const TrainArguments& train, const train::RunConfig& config,
                const train::ParallelPlan& plan) {
  const StopRequest stop;
  if (comm::read_launch_environment().launcher == "none")
    announce_stops(
        "trireme: stopping: this step ends, and a checkpoint is saved; Ctrl-C again ends at once\n");
  ::signal(SIGPIPE, SIG_IGN);  // a reader of the output may exit before the run ends
  const auto start = train.resume ? train::RunStart::kResume : train::RunStart::kFresh;
  train::RunMemory memory;
  int exit_code = 0;
  const auto run = [&](comm::Context& context) {
    exit_code =
        train::run_training(
            config, context,
            {.start = start, .stop = &stop, .began_unix_s = process_began_unix_s(), .memory = &memory})
            .exit_code;
  };
  comm::run_elastic({.context = plan.config().comm,
                     .can_run_on = [&](int ranks) { return train::can_run_on(config, ranks); },
                     .stop = &stop},
                    run);
  return exit_code;
}

/// --trace and --trace-steps as keys of the configuration, so that every rank gets them.
TrainArguments with_trace(TrainArguments train) {
  std::vector<std::string>& overrides = train.ranks.overrides;
  if (train.trace) {
    overrides.push_back("run.trace=" + toml_text(train.trace->empty() ? "trace.json" : *train.trace));
  }
  if (!train.timeline.empty()) overrides.push_back("run.timeline=" + toml_text(train.timeline));
  if (!train.trace_steps.empty()) overrides.push_back("run.trace_steps=" + toml_text(train.trace_steps));
  return train;
}

/// A run's folder means its config.toml, and the folder itself, even if it was moved since the run began.
TrainArguments with_folder(TrainArguments train) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(train.ranks.file, ignored)) return train;
  const fs::path folder = fs::absolute(train.ranks.file, ignored).lexically_normal();
  const fs::path root = folder.has_filename() ? folder : folder.parent_path();
  train.ranks.file = (root / "config.toml").string();
  std::vector<std::string>& overrides = train.ranks.overrides;
  overrides.insert(overrides.begin(), {"run.folder=" + toml_text(root.parent_path().string()),
                                       "run.name=" + toml_text(root.filename().string())});
  return train;
}

/// The plan file's tables as keys, or parallel.plan. They precede those of --set, which override them.
TrainArguments with_plan(TrainArguments train) {
  if (train.plan.empty()) return train;
  std::vector<std::string> keys;
  if (train.plan == "auto") {
    keys.push_back("parallel.plan=\"auto\"");
  } else {
    keys.push_back("parallel.plan=\"none\"");
    const std::string plan = read_bounded_stream(train.plan, kMaxConfigBytes, "plan");
    for (const auto& [key, value] : train::parse_settings(plan, train.plan))
      keys.push_back(text(key, "=", value));
  }
  train.ranks.overrides.insert(train.ranks.overrides.begin(), keys.begin(), keys.end());
  return train;
}

/// A spare has no world yet: it plans for the largest world that the configuration allows.
int world_size_of(const train::RunConfig& config, const RankPlan& ranks) {
  const comm::LaunchEnvironment environment = comm::read_launch_environment();
  if (!environment.is_spare) return ranks.world_size;
  int size = environment.most_ranks;
  while (size > 1 && !train::can_run_on(config, size)) --size;
  return size;
}

}  // namespace

int run_train(const Home& home, const TrainArguments& given) {
  const TrainArguments train = with_trace(with_folder(with_plan(given)));
  const RankPlan ranks = plan_ranks(train.ranks);
  require(train.max_restarts == 0 || ranks.launches,
          "--max-restarts needs -n N with N > 1: a launcher that outlives the ranks");
  require(!train.elastic || ranks.launches,
          "--elastic needs -n N with N > 1: a launcher that outlives the ranks");
  require(train.elastic || (train.min_ranks == 0 && train.num_spares == 0),
          "--min-ranks and --spares are for elastic jobs: add --elastic");
  require(
      !train.metrics_port || ranks.launches,
      "--metrics-port needs -n N with N > 1: a launcher serves the metrics; for one rank, or with another "
      "launcher: trireme launch -n 1 --metrics-port P -- trireme train FILE.toml");
  const auto config = train::load_run_config(train.ranks.file, train.ranks.overrides, home.registry);
  const int world_size = world_size_of(config, ranks);
  const bool is_open = config.parallel.plan == "auto";
  const train::ParallelPlan plan =
      train::check_run_config(is_open ? train::before_planning(config, world_size) : config, world_size);
  if (ranks.launches) {
    train::check_run_folder(plan, train.resume ? train::RunStart::kResume : train::RunStart::kFresh, Log());
    RankCommand command{.name = "train",
                        .of_launch = {"--max-restarts", text(train.max_restarts), "--frozen-grace",
                                      text(config.comm.timeout_s), "--autopsy", plan.config().run_folder()},
                        .find_launcher = home.find_launcher};
    if (train.elastic) command.of_launch.push_back("--elastic");
    if (train.min_ranks > 0)
      command.of_launch.insert(command.of_launch.end(), {"--min-ranks", text(train.min_ranks)});
    if (train.num_spares > 0)
      command.of_launch.insert(command.of_launch.end(), {"--spares", text(train.num_spares)});
    if (train.metrics_port)
      command.of_launch.insert(command.of_launch.end(), {"--metrics-port", text(*train.metrics_port)});
    if (!train.metrics_token_file.empty())
      command.of_launch.insert(command.of_launch.end(), {"--metrics-token-file", train.metrics_token_file});
    if (train.resume) command.options.push_back("--resume");
    become_launcher(train.ranks, command);
  }
  return run_as_rank(train, config, plan);
}

}  // namespace trireme::cli
