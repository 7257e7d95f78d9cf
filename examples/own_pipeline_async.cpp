// PipeDream, PipeDream-2BW and 1F1B-RR in a custom loop: stages update their weights while micro-batches are
// in progress.
//
//   trireme launch -n 4 -- example_own_pipeline_async [SCHEDULE] [ROUNDS]
//
// SCHEDULE: pipedream (default), pipedream-2bw or 1f1b-rr. Each rank computes on its GPU if it has one.
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>

#include "trireme/base/run_main.h"
#include "trireme/comm/context.h"
#include "trireme/model/deferred.h"
#include "trireme/parallel/pipeline/asynchronous_training.h"

namespace nn = torch::nn;
using namespace trireme;

int main(int argc, char** argv) {
  return run_main([&] {
    const auto context = comm::Context::from_environment();
    const c10::Device device = context->device();
    const std::string schedule = argc > 1 ? argv[1] : "pipedream";
    torch::manual_seed(1);  // every rank makes the whole model, and computes its stages
    nn::Sequential chain;
    for (int i = 0; i < 4; ++i) {
      chain->push_back(nn::Linear(32, 32));
      chain->push_back(nn::Tanh());
    }
    // Of the pipeline. pipedream-2bw: of an update; 1f1b-rr: a round of the two replicas of its first stage.
    const int round = schedule == "pipedream" ? 1 : schedule == "1f1b-rr" ? 2 : context->world_size();
    const auto microbatch = [&](int m) -> parallel::MicroBatch {
      torch::manual_seed(static_cast<std::uint64_t>(m) + 2);
      const at::Tensor x = at::randn({16, 32}).to(device);
      return {.input = x, .target = x.roll({1}, {1}).sin()};
    };
    const auto loss = [](const at::Tensor& output, const at::Tensor& target) {
      return at::mse_loss(output, target);
    };
    parallel::AsynchronousTraining training(*context, model::layers_of(chain),
                                            {.schedule = schedule,
                                             .num_microbatches = round,
                                             .device = device,
                                             .materialise =
                                                 [&](const std::vector<model::Layer>& stage) {
                                                   for (const model::Layer& layer : stage)
                                                     model::move_to(layer, device);
                                                 }},
                                            optim::OptimizerOptions{.name = "adam", .lr = 0.01});
    training.run({.num_microbatches = round * (argc > 2 ? std::atoi(argv[2]) : 400),
                  .next = microbatch,
                  .loss = loss,
                  .on_update = [&](int update, double mean) {
                    if (!training.pipeline().has_last_stage() || update % 100 != 0) return;
                    std::printf("update %d: loss %.5f\n", update, mean);
                    std::fflush(stdout);
                  }});
  });
}
