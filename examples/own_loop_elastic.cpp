// A custom loop in an elastic job: a rank that dies is replaced or left out, and hosts may join and leave.
// The loop continues from its last checkpoint. The global batches are the same for any number of ranks.
//
//   trireme launch -n 3 --elastic --min-ranks 2 -- example_own_loop_elastic FOLDER [STEPS]
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "trireme/trireme.h"

namespace nn = torch::nn;

namespace {

constexpr int kGlobalBatch = 60;

/// Whether a host has asked to join or leave. All ranks have the same answer.
bool world_changes(trireme::Context& context) {
  at::Tensor asked = at::full({1}, trireme::next_world_is_asked(context) ? 1.0 : 0.0);
  context.world().all_reduce(asked);
  return asked.item<double>() > 0;
}

void train(trireme::Context& context, const std::string& folder, int num_steps) {
  torch::manual_seed(1);
  nn::Sequential model(nn::Linear(8, 64), nn::Tanh(), nn::Linear(64, 1));
  trireme::DistributedDataParallel ddp(context, model.ptr());
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
  trireme::LoopCheckpoints checkpoints(context, folder, {*model, {&optimizer}});
  const std::int64_t done = checkpoints.restore();  // 0: nothing was saved yet
  if (context.is_main()) std::printf("%d ranks begin after step %d\n", context.world_size(), int(done));

  for (std::int64_t step = done + 1; step <= num_steps; ++step) {
    torch::manual_seed(1000 + step);
    const at::Tensor batch = at::randn({kGlobalBatch, 8});
    const at::Tensor x = batch.tensor_split(context.world_size())[context.rank()];  // this rank's rows
    optimizer.zero_grad();
    at::mse_loss(model->forward(x), x.sum(1, /*keepdim=*/true).sin()).backward();
    optimizer.step();
    const bool changes = world_changes(context);
    if (changes || step % 50 == 0) {
      checkpoints.save(step);
      if (context.is_main()) std::printf("saved step %d\n", int(step));
      std::fflush(stdout);
    }
    if (changes) throw trireme::WorldChange();
  }
  double sum = 0;
  for (const at::Tensor& parameter : model->parameters()) sum += parameter.sum().item<double>();
  if (context.is_main()) std::printf("weights %.6f\n", sum);
}

}  // namespace

int main(int argc, char** argv) {
  return trireme::run_main([&] {
    trireme::require(argc > 1, "name the folder of the checkpoints: ", argv[0], " FOLDER [STEPS]");
    const int num_steps = argc > 2 ? std::atoi(argv[2]) : 1000;
    trireme::run_elastic({.can_run_on = [](int ranks) { return kGlobalBatch % ranks == 0; }},
                         [&](trireme::Context& context) { train(context, argv[1], num_steps); });
  });
}
