// A torch::nn::Sequential in a pipeline, as PyTorch's Pipe(model, chunks = 8), on any number of ranks:
//
//   trireme launch -n 3 -- example_own_pipe [STEPS]
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>

#include "trireme/base/run_main.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/pipeline/pipe.h"

namespace nn = torch::nn;

int main(int argc, char** argv) {
  return trireme::run_main([&] {
    const auto context = trireme::comm::Context::from_environment();
    const int num_steps = argc > 1 ? std::atoi(argv[1]) : 50;
    torch::manual_seed(1);  // every rank makes the same model and the same batches
    nn::Sequential chain(nn::Linear(32, 64), nn::Tanh(), nn::Linear(64, 64), nn::Tanh(), nn::Linear(64, 32));
    const auto loss = [](const at::Tensor& output, const at::Tensor& target) {
      return at::mse_loss(output, target);
    };

    trireme::parallel::Pipe pipe(*context, chain, {.chunks = 8});
    torch::optim::SGD optimizer(pipe.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    for (int step = 1; step <= num_steps; ++step) {
      const at::Tensor x = at::randn({64, 32}), y = x.roll({1}, {1}).sin();
      optimizer.zero_grad();
      const double mean = pipe.step(x, y, loss);  // forward and backward of 8 micro-batches
      optimizer.step();
      if (step % 10 == 0 && context->is_main()) std::printf("step %d: loss %.5f\n", step, mean);
    }
    const at::Tensor x = at::randn({64, 32}), output = pipe.forward(x);
    const double rest = loss(output.cpu(), x.roll({1}, {1}).sin()).item<double>();
    if (context->is_main()) std::printf("evaluation: loss %.5f\n", rest);
  });
}
