// PyTorch's tutorial "Implementing a Parameter Server Using Distributed RPC Framework". Rank 0 holds the
// model. The other ranks train it through remote references, with distributed autograd and a distributed
// optimizer.
//
//   trireme launch -n 3 -- example_tutorial_parameter_server

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "trireme/remote/optimizer.h"
#include "trireme/trireme.h"

namespace nn = torch::nn;
namespace rpc = trireme::rpc;
namespace remote = trireme::remote;

namespace {

constexpr std::int64_t kClasses = 10, kPixels = 64;

class ParameterServer {
 public:
  at::Tensor forward(const at::Tensor& images) { return net_->forward(images); }

  std::vector<rpc::RRef<at::Tensor>> parameters() {
    return remote::parameter_references(*rpc::this_agent(), *net_);
  }

 private:
  nn::Sequential net_{nn::Linear(kPixels, 32), nn::ReLU(), nn::Linear(32, kClasses)};
};

// One server for all trainers.
std::shared_ptr<ParameterServer> parameter_server() {
  static const auto server = std::make_shared<ParameterServer>();
  return server;
}

struct Batch {
  at::Tensor images, classes;
};

// Each class has an image of its own, with noise.
Batch batch_of(std::int64_t size) {
  static const at::Tensor of_class = [] {
    torch::manual_seed(1);
    return at::randn({kClasses, kPixels});
  }();
  const at::Tensor classes = at::randint(kClasses, {size}, at::kLong);
  return {of_class.index_select(0, classes) + 0.5 * at::randn({size, kPixels}), classes};
}

void train(rpc::Agent& agent, int rank) {
  auto server = agent.remote<&parameter_server>("ps");
  remote::DistributedOptimizer optimizer(agent, {.name = "sgd", .lr = 0.05},
                                         server.rpc_sync<&ParameterServer::parameters>());
  batch_of(1);
  torch::manual_seed(100 + rank);
  for (int step = 1; step <= 100; ++step) {
    const Batch batch = batch_of(32);
    remote::Context context(agent);
    const at::Tensor output = server.rpc_sync<&ParameterServer::forward>(batch.images);
    const at::Tensor loss = nn::functional::cross_entropy(output, batch.classes);
    context.backward({loss});
    optimizer.step(context);
    if (step == 1 || step % 50 == 0)
      std::printf("trainer %d: step %d: loss %.5f\n", rank, step, loss.item<double>());
  }
  const Batch test = batch_of(500);
  const at::Tensor output = server.rpc_sync<&ParameterServer::forward>(test.images);
  std::printf("trainer %d: accuracy %.3f\n", rank,
              output.argmax(1).eq(test.classes).to(at::kDouble).mean().item<double>());
}

}  // namespace

int main() {
  return trireme::run_main([] {
    const auto context = trireme::Context::from_environment();
    const int rank = context->rank();
    const auto agent = remote::init(*context, rank == 0 ? "ps" : "trainer" + std::to_string(rank));
    if (rank > 0) train(*agent, rank);
    agent->leave();  // the server serves until all trainers have called it
  });
}
