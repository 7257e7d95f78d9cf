// Question: do the two parts of a split backward (schedules with I and W) cost as much together as a whole
// backward? How much does each cost? Stages as in pipelines, on one thread. Whole backward and parts take
// turns; the forward before each does not count. One line of JSON per stage: medians in milliseconds, and
// median and quartiles of (I + W) / B per round.
//
//   bench_split_backward [--smoke] [--rounds N]

#include <ATen/Parallel.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <time.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trireme/base/host.h"
#include "trireme/model/convolution_scope.h"
#include "trireme/model/model.h"
#include "trireme/parallel/pipeline/internal/stage.h"

namespace {

using namespace trireme;

struct Workload {
  std::string name;
  std::shared_ptr<torch::nn::Module> owner;
  std::vector<model::Layer> layers;
  at::Tensor input;
};

Workload mlp(std::int64_t width, std::int64_t batch) {
  torch::nn::Sequential chain;
  for (int i = 0; i < 4; ++i) {
    chain->push_back(torch::nn::Linear(width, width));
    chain->push_back(torch::nn::ReLU());
  }
  return {"mlp of " + std::to_string(width), chain.ptr(), model::layers_of(chain), at::randn({batch, width})};
}

/// Layers [first, last) of a built-in model.
Workload stage_of(const model::ModelOptions& options, const std::vector<std::int64_t>& sample, int first,
                  int last, const at::Tensor& input) {
  auto model = model::make_model(options, sample, 10, /*seed=*/1);
  const std::vector<model::Layer> layers = model->layers();
  return {options.name, model, {layers.begin() + first, layers.begin() + last}, input};
}

/// Small networks, ResNet-18 from its second group of blocks to its last, and two blocks of a GPT.
std::vector<Workload> workloads() {
  return {mlp(16, 4), mlp(256, 32), mlp(1024, 32),
          stage_of({.name = "resnet18"}, {3, 64, 64}, 3, 9, at::randn({8, 64, 16, 16})),
          stage_of({.name = "gpt"}, {64}, 1, 3, at::randn({8, 64, 128}))};
}

/// Processor time of this thread: other work on the machine does not count.
double thread_cpu_s() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

double seconds_of(const std::function<void()>& action) {
  const double begin_s = thread_cpu_s();
  action();
  return thread_cpu_s() - begin_s;
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

nlohmann::ordered_json measure(const Workload& work, int rounds) {
  parallel::Stage stage(work.layers, {.wants_input_gradient = true});
  const auto forward = [&] { return at::ones_like(stage.forward(0, work.input)); };
  std::vector<double> whole, first, second, ratios;
  for (int round = -2; round < rounds; ++round) {
    at::Tensor gradient = forward();
    const double whole_s = seconds_of([&] { stage.backward(0, gradient); });
    gradient = forward();
    const double first_s = seconds_of([&] { stage.backward_input(0, gradient); });
    const double second_s = seconds_of([&] { stage.backward_weight(0); });
    if (round < 0) continue;  // warm-up of threads, caches and gradients
    whole.push_back(1e3 * whole_s);
    first.push_back(1e3 * first_s);
    second.push_back(1e3 * second_s);
    ratios.push_back((first_s + second_s) / whole_s);
  }
  return {{"stage", work.name},
          {"whole_ms", quantile(whole, 0.5)},
          {"input_ms", quantile(first, 0.5)},
          {"weight_ms", quantile(second, 0.5)},
          {"parts_over_whole", quantile(ratios, 0.5)},
          {"quartiles", {quantile(ratios, 0.25), quantile(ratios, 0.75)}}};
}

}  // namespace

int main(int argc, char** argv) {
  bool smoke = false;
  int rounds = 101;
  CLI::App app("the two parts of a split backward beside a whole one");
  app.add_flag("--smoke", smoke, "a fraction of a second: does it run at all");
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  keep_freed_memory();  // as in a rank
  const model::ConvolutionScope convolutions(model::ConvolutionChoice::onednn());
  for (const Workload& work : workloads())
    std::cout << measure(work, smoke ? 1 : rounds) << "\n" << std::flush;
  return 0;
}
