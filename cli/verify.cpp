#include "cli/verify.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/config/run_config.h"
#include "trireme/train/run/verify.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

ordered_json as_json(const train::TensorDifference& difference) {
  return {{"step", difference.step},
          {"what", difference.what},
          {"tensor", difference.tensor},
          {"difference", difference.difference},
          {"bound", difference.bound}};
}

void print_json(const train::Comparison& comparison, int world_size) {
  const ordered_json verdict = {
      {"equal", comparison.equal()},
      {"bitwise", comparison.bitwise()},
      {"verified", comparison.verified()},
      {"max_rel_diff", comparison.largest().difference},
      {"first_difference", comparison.first() ? as_json(*comparison.first()) : ordered_json(nullptr)},
      {"steps", comparison.num_steps()},
      {"skipped_steps", comparison.num_skipped()},
      {"world_size", world_size},
      {"bounds",
       {{"loss", comparison.bounds().loss},
        {"gradient", comparison.bounds().gradient},
        {"gradient_loss", comparison.bounds().gradient_loss},
        {"weight", comparison.bounds().weight},
        {"reason", comparison.bounds().reason}}}};
  std::cout << verdict.dump(2) << std::endl;
}

const char* in_words(const train::Comparison& comparison) {
  if (comparison.first()) return "NOT EQUAL";
  if (!comparison.verified()) return "NOT VERIFIED: no step was done";
  return comparison.bitwise() ? "equal, bit by bit" : "equal within the bounds";
}

void print_text(const train::Comparison& comparison, std::int64_t asked, int world_size) {
  const std::int64_t steps = comparison.num_steps();
  std::cout << "verify: " << steps << (steps == 1 ? " step" : " steps");
  if (steps < asked) std::cout << " (the run has no more; " << asked << " were asked for)";
  std::cout << " on " << world_size << (world_size == 1 ? " rank" : " ranks")
            << " and on one: " << in_words(comparison) << "\n";
  if (comparison.num_skipped() > 0) {
    std::cout << "  " << comparison.num_skipped() << " of " << steps
              << " steps left out by both, as gradients were not finite: they prove nothing; lower "
                 "scaler.initial or optimizer.lr, or take more --steps\n";
  }
  if (comparison.first()) std::cout << "  first difference: " << comparison.first()->describe() << "\n";
  if (comparison.largest().difference > 0)
    std::cout << "  largest: " << comparison.largest().describe() << "\n";
  const train::Bounds& bounds = comparison.bounds();
  std::cout << "  bounds: loss " << bounds.loss << ", gradient " << bounds.gradient;
  if (bounds.gradient_loss > 0) std::cout << " and " << bounds.gradient_loss << " of each element";
  std::cout << ", weight " << bounds.weight << " (" << bounds.reason << ")" << std::endl;
}

}  // namespace

int run_verify(const Home& home, const VerifyArguments& arguments) {
  const RankPlan ranks = plan_ranks(arguments.ranks);
  const auto config = train::load_run_config(arguments.ranks.file, arguments.ranks.overrides, home.registry);
  const train::ParallelPlan plan = train::check_run_config(config, ranks.world_size);
  train::check_verifiable(plan);
  if (ranks.launches) {
    RankCommand command{.name = "verify",
                        .options = {"--steps", text(arguments.steps)},
                        .of_launch = {"--no-prefix", "--frozen-grace", text(config.comm.timeout_s)},
                        .find_launcher = home.find_launcher};
    if (arguments.json) command.options.push_back("--json");
    become_launcher(arguments.ranks, command);
  }
  const auto context = comm::Context::from_environment(config.comm);
  const data::DataSource data = [&] {
    const telemetry::OwnWork work(context->status(), "opening the data");
    return train::open_data(config, context->log());
  }();
  const train::Comparison comparison = train::verify(plan, *context, data, arguments.steps);
  if (!context->is_main()) return kExitOk;
  if (arguments.json) {
    print_json(comparison, context->world_size());
  } else {
    print_text(comparison, arguments.steps, context->world_size());
  }
  return comparison.equal() ? kExitOk : kExitDiverged;
}

}  // namespace trireme::cli
