#include "cli/train.h"

#include <csignal>

#include "cli/as_ranks.h"
#include "trireme/base/error.h"
#include "trireme/base/stop_request.h"
#include "trireme/comm/context.h"
#include "trireme/train/run.h"
#include "trireme/train/run_config.h"

namespace trireme::cli {
namespace {

int run_as_rank(const TrainArguments& train, const train::ParallelPlan& plan) {
  const StopRequest stop;
  ::signal(SIGPIPE, SIG_IGN);  // whoever reads what it prints may leave before its end
  const auto context = comm::Context::from_environment(plan.config().comm);
  const auto start = train.resume ? train::RunStart::kResume : train::RunStart::kFresh;
  return train::run_training(plan, *context, {.start = start, .stop = &stop}).exit_code;
}

std::string toml_text(const std::string& value) {
  require(value.find_first_of("\"\\") == std::string::npos, "cannot pass on '", value,
          "': it holds a quote or a backslash; use a configuration file");
  return text('"', value, '"');
}

/// What --trace and --trace-steps say, as keys of the configuration, so that every rank is told.
TrainArguments with_trace(TrainArguments train) {
  std::vector<std::string>& overrides = train.ranks.overrides;
  if (train.trace) {
    overrides.push_back("run.trace=" + toml_text(train.trace->empty() ? "trace.json" : *train.trace));
  }
  if (!train.timeline.empty()) overrides.push_back("run.timeline=" + toml_text(train.timeline));
  if (!train.trace_steps.empty()) overrides.push_back("run.trace_steps=" + toml_text(train.trace_steps));
  return train;
}

}  // namespace

int run_train(const Home& home, const TrainArguments& given) {
  const TrainArguments train = with_trace(given);
  const RankPlan ranks = plan_ranks(train.ranks);
  require(train.max_restarts == 0 || ranks.launches,
          "--max-restarts needs -n N with N > 1: a launcher that outlives the ranks");
  const auto config = train::load_run_config(train.ranks.file, train.ranks.overrides, home.registry);
  const train::ParallelPlan plan = train::check_run_config(config, ranks.world_size);
  if (ranks.launches) {
    RankCommand command{.name = "train",
                        .of_launch = {"--max-restarts", text(train.max_restarts), "--frozen-grace",
                                      text(config.comm.timeout_s)},
                        .find_launcher = home.find_launcher};
    if (train.resume) command.options.push_back("--resume");
    become_launcher(train.ranks, command);
  }
  return run_as_rank(train, plan);
}

}  // namespace trireme::cli
