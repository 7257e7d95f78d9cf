// A custom chain of layers, split into pipeline stages over the ranks:
//
//   trireme launch -n 4 -- example_own_pipeline [SCHEDULE] [STEPS] [BACKEND] [TIMEOUT_S]
//
// SCHEDULE is a name of `trireme schedule --help`, such as gpipe, 1f1b or zb-h1 (default: 1f1b). The losses
// are the same, to rounding, for any of them and any number of ranks.
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>

#include "trireme/trireme.h"

namespace nn = torch::nn;

int main(int argc, char** argv) {
  return trireme::run_main([&] {
    const auto context = trireme::Context::from_environment(
        {.backend = argc > 3 ? argv[3] : "auto", .timeout_s = argc > 4 ? std::atof(argv[4]) : 30});
    const int num_steps = argc > 2 ? std::atoi(argv[2]) : 50;
    torch::manual_seed(1);  // every rank makes the whole model, and keeps the gradients of its stages
    nn::Sequential chain;
    for (int i = 0; i < 8; ++i) {
      chain->push_back(nn::Linear(32, 32));
      chain->push_back(nn::Tanh());
    }
    trireme::Pipeline pipe(*context, trireme::layers_of(chain),
                           {.schedule = argc > 1 ? argv[1] : "1f1b", .num_microbatches = 8});
    const auto optimizer =
        trireme::make_optimizer({.name = "sgd", .lr = 0.05, .momentum = 0.9}, pipe.parameters());
    const auto loss = [](const at::Tensor& output, const at::Tensor& target) {
      return at::mse_loss(output, target);
    };

    for (int step = 1; step <= num_steps; ++step) {
      const at::Tensor x = at::randn({64, 32});
      const at::Tensor y = x.roll({1}, {1}).sin();
      pipe.zero_grad();
      const double mean =
          pipe.step(x, y, loss);  // forward and backward of 8 micro-batches through all stages
      optimizer->step();
      if (step % 10 == 0 && context->is_main()) {
        std::printf("step %d: loss %.5f\n", step, mean);
        std::fflush(stdout);
      }
    }
  });
}
