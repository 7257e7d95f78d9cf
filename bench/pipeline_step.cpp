// Question: how fast is a pipeline's step (forward, backward, update)? This is one rank of the measurement.
// bench/pipeline_step.sh compares it with torch.distributed.pipelining with the same model, cuts,
// micro-batches and optimizer (bench/peers/pipeline_step.py). One torch thread per rank. Prints one line of
// JSON on rank 0. With one rank the micro-batches run one after the other. Half of that time, plus the bubble
// of the program, is the ideal of two ranks.
//
//   bench_pipeline_step [--smoke] [--model mlp|gpt|resnet50] [--schedule NAME] [--steps N] [--backend NAME]

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench/seconds_of.h"
#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/comm/context.h"
#include "trireme/model/convolution_scope.h"
#include "trireme/model/model.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/convolution_agreement.h"
#include "trireme/parallel/pipeline/pipeline.h"

namespace {

using namespace trireme;
using bench::seconds_of;

constexpr int kMicrobatches = 8;

struct Workload {
  std::shared_ptr<torch::nn::Module> owner;
  std::shared_ptr<model::Model> model;  ///< the owner, if it has convolutions
  std::vector<model::Layer> layers;
  std::vector<int> cuts;  ///< into four stages; two are cut in the middle
  at::Tensor input, target;
};

Workload mlp() {
  constexpr std::int64_t kWidth = 1024;
  torch::nn::Sequential chain;
  for (int i = 0; i < 8; ++i) {
    chain->push_back(torch::nn::Linear(kWidth, kWidth));
    chain->push_back(torch::nn::ReLU());
  }
  return {chain.ptr(),
          nullptr,
          model::layers_of(chain),
          {4, 8, 12},
          at::randn({128, kWidth}),
          at::randint(kWidth, {128}, at::kLong)};
}

Workload gpt() {
  auto model = model::make_model({.name = "gpt"}, {64}, 65, /*seed=*/1);
  return {model,
          nullptr,
          model->layers(),
          {2, 3, 4},
          at::randint(65, {16, 64}, at::kLong),
          at::randint(65, {16, 64}, at::kLong)};
}

Workload resnet50() {
  auto model = model::make_model({.name = "resnet50"}, {3, 64, 64}, 10, /*seed=*/1);
  return {model,
          model,
          model->layers(),
          {4, 8, 12},
          at::randn({32, 3, 64, 64}),
          at::randint(10, {32}, at::kLong)};
}

Workload workload_of(const std::string& name) {
  return name == "mlp" ? mlp() : name == "gpt" ? gpt() : resnet50();
}

model::ConvolutionChoice convolutions_for(comm::Context& context, const Workload& work) {
  if (!work.model) return {};
  return parallel::measured_convolutions(context, *work.model, work.input.chunk(kMicrobatches)[0]);
}

at::Tensor loss(const at::Tensor& logits, const at::Tensor& target) {
  return at::cross_entropy_loss(logits.flatten(0, -2), target.flatten());
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("A pipeline's step.");
  std::string model = "mlp", schedule = "1f1b", backend = "auto";
  int steps = 20;
  bool smoke = false;
  app.add_option("--model", model)->check(CLI::IsMember({"mlp", "gpt", "resnet50"}));
  app.add_option("--schedule", schedule);
  app.add_option("--backend", backend);
  app.add_option("--steps", steps)->check(CLI::PositiveNumber);
  app.add_flag("--smoke", smoke);
  CLI11_PARSE(app, argc, argv);
  if (smoke) steps = 2;

  keep_freed_memory();
  const auto context = comm::Context::from_environment({.backend = backend, .torch_threads = 1});
  const Workload work = workload_of(model);
  const model::ConvolutionScope convolutions(convolutions_for(*context, work));
  const bool alone = context->world_size() == 1, interleaved = schedule.starts_with("interleaved");
  const std::vector<int> cuts = interleaved ? work.cuts : std::vector{work.cuts[1]};
  parallel::Pipeline pipe(*context, work.layers,
                          {.schedule = alone ? "1f1b" : schedule,
                           .num_microbatches = kMicrobatches,
                           .num_chunks = interleaved && !alone ? 2 : 0,
                           .cuts = alone ? std::vector<int>{} : cuts});
  const auto optimizer =
      optim::make_optimizer({.name = "sgd", .lr = 1e-4, .momentum = 0.9}, pipe.parameters());
  const auto step = [&] {
    pipe.zero_grad();
    pipe.step(work.input, work.target, loss);
    optimizer->step();
  };
  seconds_of(*context, std::min(steps, 3), step);
  const double waited_before_s = pipe.waited_s();
  const double seconds = seconds_of(*context, steps, step);
  if (!context->is_main()) return 0;
  std::cout << nlohmann::json{{"system", "trireme"},
                              {"model", model},
                              {"schedule", alone ? "one rank" : schedule},
                              {"ranks", context->world_size()},
                              {"step_ms", 1e3 * seconds / steps},
                              {"waited_ms", 1e3 * (pipe.waited_s() - waited_before_s) / steps}}
                   .dump()
            << std::endl;
  return 0;
} catch (const trireme::Error& error) {
  std::cerr << error.what() << std::endl;
  return error.exit_code();
}
