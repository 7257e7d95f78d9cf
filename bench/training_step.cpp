// How fast is a data-parallel training step? One rank of the measurement; bench/training_step.sh runs it
// beside Python's DistributedDataParallel with the same model, batch and optimizer
// (bench/peers/training_step.py). One torch thread per rank. Prints one line of JSON on rank 0: samples per
// second over all ranks.
//
//   bench_training_step [--smoke] [--model mlp|cnn|wide|resnet50|gpt] [--precision fp32|bf16] [--steps N]
//   [--backend auto|shm|gloo] [--convolution auto|aten|onednn|product]
//   [--memory-format auto|contiguous|channels_last]

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench/seconds_of.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/model/convolution_scope.h"
#include "trireme/model/model.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/train/convolutions.h"
#include "trireme/train/precision.h"
#include "trireme/train/run_config.h"

namespace {

using namespace trireme;
using bench::seconds_of;

struct Workload {
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<model::Model> model;  ///< the module, where we ship it
  std::function<at::Tensor(const at::Tensor&)> forward;
  at::Tensor input;
  at::Tensor target;
};

Workload shipped_model(const std::string& name, const std::vector<std::int64_t>& image, std::int64_t batch) {
  auto model = model::make_model({.name = name}, image, 10, /*seed=*/1);
  return {model, model, [model](const at::Tensor& x) { return model->forward(x); },
          at::randn({batch, image[0], image[1], image[2]}), at::randint(10, {batch}, at::kLong)};
}

/// The character model of examples/gpt_char.toml.
Workload text_model() {
  auto model = model::make_model({.name = "gpt"}, {64}, 65, /*seed=*/1);
  return {model, model, [model](const at::Tensor& x) { return model->forward(x); },
          at::randint(65, {12, 64}, at::kLong), at::randint(65, {12 * 64}, at::kLong)};
}

/// 16.8 million parameters and little to compute: communication dominates.
Workload wide_model() {
  constexpr std::int64_t kWidth = 2048;
  torch::nn::Sequential layers;
  for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
  return {layers.ptr(), nullptr, [layers](const at::Tensor& x) mutable { return layers->forward(x); },
          at::randn({8, kWidth}), at::randint(kWidth, {8}, at::kLong)};
}

Workload workload_of(const std::string& name) {
  if (name == "resnet50") return shipped_model(name, {3, 64, 64}, 8);
  if (name == "gpt") return text_model();
  if (name == "wide") return wide_model();
  return shipped_model(name, {1, 28, 28}, 64);
}

/// One row per target.
at::Tensor logits_of(const Workload& work, const train::Precision& precision) {
  const train::PrecisionScope scope(precision, at::kCPU);
  return work.forward(work.input).to(at::kFloat).flatten(0, -2);
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("A data-parallel training step.");
  std::string model = "mlp";
  std::string precision = "fp32";
  std::string backend = "auto", convolution = "auto", memory_format = "auto";
  int steps = 50;
  bool smoke = false;
  app.add_option("--model", model)->check(CLI::IsMember({"mlp", "cnn", "wide", "resnet50", "gpt"}));
  app.add_option("--precision", precision)->check(CLI::IsMember(train::precision_names()));
  app.add_option("--backend", backend);
  app.add_option("--convolution", convolution)->check(CLI::IsMember(train::convolution_names()));
  app.add_option("--memory-format", memory_format)->check(CLI::IsMember(train::memory_format_names()));
  app.add_option("--steps", steps)->check(CLI::PositiveNumber);
  app.add_flag("--smoke", smoke);
  CLI11_PARSE(app, argc, argv);
  if (smoke) steps = 2;

  const auto context = comm::Context::from_environment({.backend = backend, .torch_threads = 1});
  const Workload work = workload_of(model);
  const auto convolutions_of_a_run = [&] {
    return train::convolutions_for(train::convolution_rule(convolution, memory_format),
                                   train::precision_of(precision), *context, *work.model,
                                   work.input.narrow(0, 0, 1), work.input.size(0));
  };
  const model::ConvolutionScope convolutions(work.model ? convolutions_of_a_run()
                                                        : model::ConvolutionChoice{});
  DistributedDataParallel ddp(*context, work.module);
  optim::NamedTensors parameters;
  for (const auto& item : work.module->named_parameters()) parameters.emplace_back(item.key(), item.value());
  const auto optimizer = optim::make_optimizer({.name = "sgd"}, parameters);
  const train::Precision& format = train::precision_of(precision);
  const auto step = [&] {
    ddp.zero_grad();
    at::cross_entropy_loss(logits_of(work, format), work.target).backward();
    optimizer->step(1e-4);
  };
  seconds_of(*context, std::min(steps, 5), step);  // buckets are rebuilt, memory is warm
  const double waited_before_s = ddp.statistics().waited_s;
  const double seconds = seconds_of(*context, steps, step);
  if (!context->is_main()) return 0;
  const double samples = static_cast<double>(work.input.size(0)) * steps * context->world_size();
  std::cout << nlohmann::json{{"system", "trireme"},
                              {"model", precision == "fp32" ? model : model + " " + precision},
                              {"convolution", convolution},
                              {"ranks", context->world_size()},
                              {"backend", context->world().backend_name()},
                              {"steps", steps},
                              {"step_ms", 1e3 * seconds / steps},
                              {"waited_ms", 1e3 * (ddp.statistics().waited_s - waited_before_s) / steps},
                              {"samples_per_s", samples / seconds}}
                   .dump()
            << std::endl;
  return 0;
} catch (const trireme::Error& error) {
  std::cerr << error.what() << std::endl;
  return error.exit_code();
}
