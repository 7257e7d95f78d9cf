// Question: how long does an optimizer's step take? All parameters of ResNet-50 (25.6 million in 161 tensors)
// with fixed gradients, one thread. Prints one line of JSON per optimizer: the median of the steps. For
// comparison, bench/optimizer_step.sh runs PyTorch's fused or foreach optimizers on the same tensors
// (bench/peers/optimizer_step.py).
//
//   bench_optimizer_step [--smoke] [--optimizer NAME]... [--steps N]

#include <ATen/Parallel.h>
#include <ATen/ops/full_like.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trireme/base/clock.h"
#include "trireme/base/host.h"
#include "trireme/model/model.h"
#include "trireme/optim/optimizer.h"

namespace {

using namespace trireme;

double median_step_s(const std::string& name, const optim::NamedTensors& parameters, int steps) {
  const auto optimizer =
      optim::make_optimizer({.name = name, .lr = 1e-6, .weight_decay = 0, .momentum = 0.9}, parameters);
  for (int i = 0; i < 2; ++i) optimizer->step();
  std::vector<double> times;
  for (int i = 0; i < steps; ++i) {
    const double begin_s = now_s();
    optimizer->step();
    times.push_back(now_s() - begin_s);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("An optimizer's step over the parameters of ResNet-50.");
  std::vector<std::string> names = optim::optimizer_names();
  int steps = 15;
  bool smoke = false;
  app.add_option("--optimizer", names);
  app.add_option("--steps", steps)->check(CLI::PositiveNumber);
  app.add_flag("--smoke", smoke, "one step of a small model");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  keep_freed_memory();
  const auto model = model::make_model({.name = smoke ? "mlp" : "resnet50"}, {3, 64, 64}, 1000, /*seed=*/1);
  optim::NamedTensors parameters;
  for (const auto& item : model->named_parameters()) {
    parameters.emplace_back(item.key(), item.value());
    parameters.back().second.mutable_grad() = at::full_like(item.value(), 1e-3);
  }
  for (const std::string& name : names) {
    std::cout << nlohmann::json{{"system", "trireme"},
                                {"optimizer", name},
                                {"step_ms", 1e3 * median_step_s(name, parameters, smoke ? 1 : steps)}}
              << std::endl;
  }
  return 0;
}
