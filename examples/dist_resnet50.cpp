// ResNet-50 over two workers. A third trains it through remote calls. This is the program of PyTorch's
// tutorial "Distributed Pipeline Parallelism Using RPC". Random images, one-hot labels, mean squared error,
// SGD.
//
//   trireme launch -n 3 -- build/release/bin/example_dist_resnet50 [STEPS [SPLITS [BATCH [IMAGE_SIZE]]]]
//
// SPLITS: micro-batches of a batch, 4 by default. A worker computes on its GPU if it has one.

#include <torch/torch.h>

#include <cstdio>

#include "trireme/trireme.h"

using namespace trireme;

namespace {

struct Sizes {
  std::int64_t steps = 3, splits = 4, batch = 120, image = 128;
};

void train_resnet(const rpc::Agent& agent, const Sizes& sizes) {
  constexpr std::int64_t kClasses = 1000;
  const remote::Pipe model =
      remote::make_dist_resnet50(agent, {"worker1", "worker2"}, {"auto", "auto"}, sizes.splits,
                                 {.input_shape = {3, sizes.image, sizes.image}, .num_classes = kClasses});
  remote::DistributedOptimizer optimizer(agent, {.name = "sgd", .lr = 0.05}, model.parameters());

  torch::manual_seed(1);
  for (std::int64_t step = 1; step <= sizes.steps; ++step) {
    const at::Tensor images = torch::randn({sizes.batch, 3, sizes.image, sizes.image});
    const at::Tensor labels =
        torch::one_hot(torch::randint(kClasses, {sizes.batch}), kClasses).to(torch::kFloat);
    remote::Context context(agent);
    const at::Tensor loss = torch::mse_loss(*model.forward(images).local_value(), labels);
    context.backward({loss});
    optimizer.step(context);
    std::printf("step %ld: loss %.5f\n", static_cast<long>(step), loss.item<double>());
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run_main([&] {
    Sizes sizes;
    int next = 1;
    for (std::int64_t* each : {&sizes.steps, &sizes.splits, &sizes.batch, &sizes.image})
      if (next < argc) *each = std::atol(argv[next++]);
    const auto context = Context::from_environment();
    require(context->world_size() == 3, "this example takes 3 ranks: trireme launch -n 3 -- ...");
    const auto agent = remote::init(*context, text("worker", context->rank()));
    if (context->is_main()) train_resnet(*agent, sizes);
    agent->leave();  // the workers serve until the caller leaves
  });
}
