// A model in two halves on two workers. A third worker trains it through remote calls. Activations go from
// worker to worker, and gradients return the same way. Each half is updated on its worker.
//
//   trireme launch -n 3 -- build/release/bin/example_remote_pipe
//
// docs/rpc.md explains it.

#include <torch/torch.h>

#include <cstdio>

#include "trireme/base/error.h"
#include "trireme/base/run_main.h"
#include "trireme/comm/context.h"
#include "trireme/remote/init.h"
#include "trireme/remote/optimizer.h"
#include "trireme/remote/pipe.h"

using namespace trireme;

namespace {

/// Runs on the worker of the part: every worker makes the same model, and keeps its part.
std::shared_ptr<remote::Shard> make_part(int part) {
  torch::manual_seed(1);
  const torch::nn::Sequential model(torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64),
                                    torch::nn::Tanh(), torch::nn::Linear(64, 1));
  return remote::part_of(model, part, 2);
}

void train(const rpc::Agent& agent) {
  const auto first = agent.remote<&make_part>("worker1", 0);
  const auto second = agent.remote<&make_part>("worker2", 1);
  const remote::Pipe pipe(agent, {first, second}, {.chunks = 4});
  remote::DistributedOptimizer optimizer(agent, {.name = "adam", .lr = 0.01}, pipe.parameters());

  torch::manual_seed(3);
  for (int step = 1; step <= 200; ++step) {
    const at::Tensor x = torch::rand({64, 2}) * 2 - 1;
    const at::Tensor y = (x.select(1, 0) * x.select(1, 1)).unsqueeze(1);  // the target
    remote::Context context(agent);
    const at::Tensor loss = torch::mse_loss(*pipe.forward(x).local_value(), y);
    context.backward({loss});
    optimizer.step(context);
    if (step % 50 == 0) std::printf("step %3d: loss %.5f\n", step, loss.item<double>());
  }
}

}  // namespace

int main() {
  return run_main([] {
    const auto context = comm::Context::from_environment();
    require(context->world_size() == 3, "this example takes 3 ranks: trireme launch -n 3 -- ...");
    const auto agent = remote::init(*context, text("worker", context->rank()));
    if (context->is_main()) train(*agent);
    agent->leave();  // the workers serve until all have called this
  });
}
