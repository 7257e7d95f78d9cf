// A libtorch program with its own loop, made parallel by the lines marked with (+). It runs alone, under
// `trireme launch -n 2 -- example_own_loop`, and under `mpirun -n 2 example_own_loop`; the global batch, and
// so the losses, are the same for any number of ranks that divides it.
#include <ATen/ops/randn.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cstdio>

#include "trireme/trireme.h"  // (+)

namespace nn = torch::nn;

int main() {
  return trireme::run_main([&] {
    const auto context = trireme::Context::from_environment();  // (+)
    torch::manual_seed(1);
    nn::Sequential model(nn::Linear(8, 64), nn::Tanh(), nn::Linear(64, 1));
    trireme::DistributedDataParallel ddp(*context, model.ptr());  // (+)
    torch::optim::SGD optimizer(model->parameters(), 0.1);

    constexpr std::int64_t kGlobalBatch = 64;
    const std::int64_t batch = kGlobalBatch / context->world_size();  // (+)
    for (int step = 1; step <= 50; ++step) {
      const at::Tensor all = at::randn({kGlobalBatch, 8});
      const at::Tensor x = all.narrow(0, context->rank() * batch, batch);  // (+) this rank's part
      const at::Tensor y = x.sum(1, /*keepdim=*/true).sin();
      const at::Tensor loss = nn::functional::mse_loss(model->forward(x), y);
      optimizer.zero_grad();
      loss.backward();  // when it returns, every gradient is the mean over the ranks
      optimizer.step();
      if (step % 10 != 0) continue;
      at::Tensor mean = loss.detach();
      context->world().all_reduce(mean, trireme::ReduceOp::kAverage);                          // (+)
      if (context->is_main()) std::printf("step %d: loss %.5f\n", step, mean.item<double>());  // (+)
    }
  });
}
