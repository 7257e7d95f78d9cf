// Question: what does activation checkpointing (recomputing layers in the backward pass) cost, and what does
// it save? A GPT on one thread, forward and backward. Three variants take turns: no layer recomputed, every
// second block, all blocks. The output includes the model's prediction. It is (2 f + b) / (f + b), 4/3 for b
// = 2 f. f and b are the times of forward and backward without recomputation. The predicted memory comes from
// the profile. One line of JSON per variant: median milliseconds of the thread, median and quartiles of the
// ratios per round, and the peak of a step's allocations.
//
//   bench_activation_memory [--smoke] [--rounds N] [--layers N] [--width N] [--batch N] [--block N]

#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trireme/base/host.h"
#include "trireme/model/checkpointed.h"
#include "trireme/model/gpt.h"
#include "trireme/parallel/allocated_bytes.h"
#include "trireme/train/estimate/layer_profile.h"

namespace {

using namespace trireme;

struct Arguments {
  bool smoke = false;
  int rounds = 21;
  std::int64_t layers = 8, width = 256, batch = 8, block = 128;
};

struct Way {
  std::string name;
  std::vector<bool> recomputed;
  std::vector<model::Layer> layers;
  std::vector<double> milliseconds, ratios;
  std::int64_t peak_bytes = 0;
};

struct Seconds {
  double forward = 0, all = 0;
};

/// Processor time of this thread: other work on the machine does not count.
double thread_cpu_s() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

Seconds step(const Way& way, const at::Tensor& tokens) {
  const double begin_s = thread_cpu_s();
  Fields values = tokens;
  for (const model::Layer& layer : way.layers) values = layer.forward(values);
  const at::Tensor loss = values->logsumexp(2).sum();
  const double middle_s = thread_cpu_s();
  loss.backward();
  return {.forward = middle_s - begin_s, .all = thread_cpu_s() - begin_s};
}

Way make_way(const std::string& name, std::vector<model::Layer> layers, std::size_t every) {
  Way way;
  way.name = name;
  way.recomputed.resize(layers.size(), false);
  for (std::size_t i = 1; every > 0 && i + 1 < layers.size(); i += every) {
    layers[i] = model::checkpointed(std::move(layers[i]));
    way.recomputed[i] = true;
  }
  way.layers = std::move(layers);
  return way;
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

void measure(const Arguments& arguments) {
  model::Gpt gpt({.layers = arguments.layers,
                  .heads = 4,
                  .width = arguments.width,
                  .block = arguments.block,
                  .vocabulary = 65});
  gpt.initialise(1);
  const at::Tensor tokens = at::randint(65, {arguments.batch, arguments.block}, at::kLong);
  std::vector<Way> ways = {make_way("kept", gpt.layers(), 0), make_way("every second block", gpt.layers(), 2),
                           make_way("all blocks", gpt.layers(), 1)};
  std::vector<double> forward_shares;
  const int rounds = arguments.smoke ? 1 : arguments.rounds;
  for (int round = -1; round < rounds; ++round) {
    double kept_s = 0;
    for (Way& way : ways) {
      const Seconds took = step(way, tokens);
      if (&way == &ways.front()) kept_s = took.all;
      if (round < 0) continue;  // warm-up of caches and gradients
      if (&way == &ways.front()) forward_shares.push_back(took.forward / took.all);
      way.milliseconds.push_back(1e3 * took.all);
      way.ratios.push_back(took.all / kept_s);
    }
  }
  const plan::LiveChain chain{.layers = train::profile_recomputable(gpt.layers(), tokens)};
  const double forward_share = quantile(forward_shares, 0.5);
  for (Way& way : ways) {
    const parallel::AllocatedBytes allocated;
    step(way, tokens);
    way.peak_bytes = allocated.peak();
    const plan::Recomputation model = plan::cost_of({&chain, 1}, {way.recomputed});
    double all_s = 0;
    for (const plan::Recomputable& layer : chain.layers) all_s += layer.forward_s;
    std::cout << nlohmann::ordered_json{{"way", way.name},
                                        {"ms", quantile(way.milliseconds, 0.5)},
                                        {"time_over_kept", quantile(way.ratios, 0.5)},
                                        {"quartiles",
                                         {quantile(way.ratios, 0.25), quantile(way.ratios, 0.75)}},
                                        {"model_time_over_kept", 1 + forward_share * model.added_s / all_s},
                                        {"peak_mib", static_cast<double>(way.peak_bytes) / 0x1p20},
                                        {"model_activations_mib", model.peak_bytes / 0x1p20}}
              << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("what recomputing layers costs and saves");
  app.add_flag("--smoke", arguments.smoke, "a fraction of a second: does it run at all");
  app.add_option("--rounds", arguments.rounds)->check(CLI::PositiveNumber);
  app.add_option("--layers", arguments.layers)->check(CLI::PositiveNumber);
  app.add_option("--width", arguments.width)->check(CLI::PositiveNumber);
  app.add_option("--batch", arguments.batch)->check(CLI::PositiveNumber);
  app.add_option("--block", arguments.block)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  if (arguments.smoke) arguments = {.smoke = true, .layers = 2, .width = 16, .batch = 2, .block = 8};
  at::set_num_threads(1);
  keep_freed_memory();  // as in a rank
  measure(arguments);
  return 0;
}
