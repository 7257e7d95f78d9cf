// Question: what overhead does a pipeline add to each action? One rank, four stages of one tiny layer each.
// The reference is a manual loop with the same forwards and backwards on the same tensors, stage by stage.
// The executor is also measured alone, with empty handlers. Medians of passes that take turns. Prints one
// line of JSON, in microseconds per action.
//
//   bench_executor [--smoke] [--passes N]

#include "trireme/parallel/executor.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/median.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/schedule/lowering.h"
#include "trireme/schedule/schedule_table.h"

namespace {

using namespace trireme;

constexpr int kStages = 4, kMicrobatches = 32;

torch::nn::Sequential chain() {
  torch::nn::Sequential layers;
  for (int i = 0; i < kStages; ++i) layers->push_back(torch::nn::Linear(2, 2));
  return layers;
}

at::Tensor loss(const at::Tensor& output, const at::Tensor&) { return output.sum(); }

/// All micro-batches, each forward and backward through all stages, detached between stages as in a pipeline.
void by_hand(torch::nn::Sequential& layers, const at::Tensor& input) {
  for (const at::Tensor& part : input.split(1)) {
    std::vector<at::Tensor> inputs, outputs;
    at::Tensor values = part;
    for (int stage = 0; stage < kStages; ++stage) {
      inputs.push_back(values.detach().requires_grad_(stage > 0));
      outputs.push_back((layers->begin() + stage)->any_forward(inputs.back()).get<at::Tensor>());
      values = outputs.back();
    }
    outputs.back() = loss(outputs.back(), {});
    at::Tensor gradient = at::full({}, 1.0 / kMicrobatches);
    for (int stage = kStages; stage-- > 0;) {
      torch::autograd::backward({outputs[static_cast<std::size_t>(stage)]}, {gradient});
      gradient = inputs[static_cast<std::size_t>(stage)].grad();
    }
  }
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("What the executor adds to an action.");
  int passes = 201;
  bool smoke = false;
  app.add_option("--passes", passes)->check(CLI::PositiveNumber);
  app.add_flag("--smoke", smoke);
  CLI11_PARSE(app, argc, argv);
  if (smoke) passes = 3;

  const auto context = comm::Context::join({}, {.torch_threads = 1});
  torch::nn::Sequential layers = chain();
  const auto program = schedule::lower(schedule::make_schedule(
      "looped-bfs", {.num_ranks = 1, .num_chunks = kStages, .num_microbatches = kMicrobatches}));
  parallel::Pipeline pipe(*context, model::layers_of(layers),
                          {.num_microbatches = kMicrobatches, .program = program});
  const auto nothing = [](const schedule::Action&) {};
  parallel::Executor empty(program, 0,
                           {.forward = nothing, .backward = nothing, .reduce_grad = nothing, .step = nothing},
                           context->status());
  const at::Tensor input = at::ones({kMicrobatches, 2});
  const auto actions = static_cast<double>(program.ranks[0].size());
  const auto us_per_action = [&](const std::function<void()>& work) {
    const double begin_s = now_s();
    work();
    return 1e6 * (now_s() - begin_s) / actions;
  };
  std::vector<double> alone, hand, in_pipe, added;
  for (int pass = 0; pass < passes + 2; ++pass) {
    const double empty_us = us_per_action([&] { empty.run(1); });
    const double hand_us = us_per_action([&] { by_hand(layers, input); });
    const double pipe_us = us_per_action([&] { pipe.step(input, input, loss); });
    if (pass < 2) continue;  // warm-up
    alone.push_back(empty_us);
    hand.push_back(hand_us);
    in_pipe.push_back(pipe_us);
    added.push_back(pipe_us - hand_us);
  }
  std::cout << nlohmann::json{{"actions", actions},
                              {"executor_us", median(alone)},
                              {"by_hand_us", median(hand)},
                              {"pipeline_us", median(in_pipe)},
                              {"added_us", median(added)}}
                   .dump()
            << std::endl;
  return 0;
} catch (const trireme::Error& error) {
  std::cerr << error.what() << std::endl;
  return error.exit_code();
}
