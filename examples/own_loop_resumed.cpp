// A custom loop that saves a checkpoint every 100 steps and resumes from it. After an interruption it ends
// with the same bits as without, dropout included.
//
//   trireme launch -n 2 -- example_own_loop_resumed FOLDER [STEPS]
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>

#include "trireme/trireme.h"

namespace nn = torch::nn;

int main(int argc, char** argv) {
  return trireme::run_main([&] {
    trireme::require(argc > 1, "name the folder of the checkpoints: ", argv[0], " FOLDER [STEPS]");
    const auto context = trireme::Context::from_environment();
    const int num_steps = argc > 2 ? std::atoi(argv[2]) : 1000;
    torch::manual_seed(1);
    nn::Sequential model(nn::Linear(8, 64), nn::BatchNorm1d(64), nn::Dropout(0.1), nn::Linear(64, 1));
    trireme::DistributedDataParallel ddp(*context, model.ptr());
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
    torch::manual_seed(100 + context->rank());  // samples and dropout of this rank

    trireme::LoopCheckpoints checkpoints(*context, argv[1], {*model, {&optimizer}});
    const std::int64_t done = checkpoints.restore();  // 0: nothing was saved yet
    if (context->is_main()) std::printf("begins behind step %ld\n", static_cast<long>(done));
    double sum = 0;
    for (std::int64_t step = done + 1; step <= num_steps; ++step) {
      const at::Tensor x = at::randn({32, 8}), y = x.sum(1, /*keepdim=*/true).sin();
      optimizer.zero_grad();
      at::mse_loss(model->forward(x), y).backward();
      optimizer.step();
      if (step % 100 != 0) continue;
      checkpoints.save(step);
      if (context->is_main()) std::printf("saved step %ld\n", static_cast<long>(step));
      std::fflush(stdout);
    }
    for (const at::Tensor& parameter : model->parameters()) sum += parameter.sum().item<double>();
    if (context->is_main()) std::printf("weights %.17g\n", sum);
  });
}
