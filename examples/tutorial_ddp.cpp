// PyTorch's tutorial "Getting Started with Distributed Data Parallel": a toy model, and a checkpoint that one
// rank writes.
//
//   trireme launch -n 2 -- example_tutorial_ddp FILE

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "trireme/trireme.h"

namespace nn = torch::nn;

namespace {

nn::Sequential toy_model() { return nn::Sequential(nn::Linear(10, 10), nn::ReLU(), nn::Linear(10, 5)); }

double train(trireme::Context& context, nn::Sequential& model, int steps) {
  trireme::DistributedDataParallel ddp(context, model.ptr());
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  torch::manual_seed(100 + context.rank());  // this rank's samples
  const at::Tensor x = at::randn({20, 10}), y = x.narrow(1, 0, 5).sin();
  at::Tensor loss;
  for (int step = 0; step < steps; ++step) {
    loss = nn::functional::mse_loss(model->forward(x), y);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  at::Tensor mean = loss.detach();
  context.world().all_reduce(mean, trireme::ReduceOp::kAverage);
  return mean.item<double>();
}

}  // namespace

int main(int argc, char** argv) {
  return trireme::run_main([&] {
    const std::string file = argc > 1 ? argv[1] : "toy_model.pt";
    const auto context = trireme::Context::from_environment();

    nn::Sequential model = toy_model();
    const double first = train(*context, model, 1), last = train(*context, model, 50);
    if (context->is_main()) std::printf("loss %.5f, after 50 steps %.5f\n", first, last);

    trireme::save_whole(*context, trireme::replicated_loop(*model), *model, file);  // rank 0 writes
    nn::Sequential loaded = toy_model();
    trireme::load_whole(*context, *loaded, file);  // rank 0 reads, and the others get its weights
    for (const auto& each : model->named_parameters())
      if (!at::equal(each.value(), loaded->named_parameters()[each.key()]))
        throw trireme::InvalidArgument("other weights: " + each.key());
    std::printf("rank %d: loaded equals saved\n", context->rank());

    const double resumed = train(*context, loaded, 50);
    context->world().barrier();  // all ranks have read
    if (context->is_main()) {
      std::printf("loss of the loaded model after 50 more steps %.5f\n", resumed);
      std::filesystem::remove(file);
    }
  });
}
