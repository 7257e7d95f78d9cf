// A program outside the source tree with a user-defined module and training loop. Gradients are averaged over
// the ranks.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstdio>

#include "trireme/trireme.h"

struct Line : torch::nn::Module {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(2, 1));
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x); }
};

int main() {
  try {
    auto context = trireme::Context::from_environment();
    auto net = std::make_shared<Line>();
    trireme::DistributedDataParallel ddp(*context, net);
    torch::optim::SGD optimizer(net->parameters(), 0.5);
    // Rank r gets only inputs of its own axis. Without the gradients of the other ranks it cannot learn the
    // other weights.
    auto x = torch::zeros({8, 2});
    x.select(1, context->rank() % 2).copy_(torch::linspace(-1, 1, 8));
    auto y = x.matmul(torch::tensor({{2.0F}, {-3.0F}}));
    for (int step = 0; step < 200; ++step) {
      ddp.zero_grad();
      torch::nn::functional::mse_loss(net->forward(x), y).backward();
      optimizer.step();
    }
    auto weights = net->layer->weight.detach();
    char line[80];
    std::snprintf(line, sizeof line, "%.3f %.3f", weights[0][0].item<float>(), weights[0][1].item<float>());
    auto lines = context->world().all_gather_text(line);
    if (context->is_main()) std::printf("separate: %d ranks, weights %s\n", context->world_size(), line);
    for (const auto& other : lines) {
      if (other != lines.front()) return 1;
    }
    return 0;
  } catch (const trireme::Error& error) {
    std::fprintf(stderr, "separate: %s\n", error.what());
    return error.exit_code();
  }
}
