// PyTorch's tutorial "Getting Started with Distributed Checkpoint (DCP)": a sharded model saves its state,
// and another number of ranks loads it.
//
//   trireme launch -n 4 -- example_tutorial_checkpoint save FOLDER
//   trireme launch -n 2 -- example_tutorial_checkpoint load FOLDER
//   example_tutorial_checkpoint load FOLDER              without a launcher: one rank

#include <ATen/ops/randn.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <cstdio>
#include <string>

#include "trireme/trireme.h"

namespace nn = torch::nn;

int main(int argc, char** argv) {
  return trireme::run_main([&] {
    const std::string task = argc > 1 ? argv[1] : "save";
    const std::string folder = argc > 2 ? argv[2] : "runs/tutorial_checkpoint";
    const auto context = trireme::Context::from_environment();
    torch::manual_seed(task == "save" ? 1 : 2);  // a load replaces other weights
    nn::Sequential model(nn::Linear(16, 16), nn::ReLU(), nn::Linear(16, 8));
    trireme::FullyShardedDataParallel sharded = trireme::fully_shard(*context, model);
    torch::optim::Adam optimizer(trireme::tensors_of(sharded.parameters()), 0.1);
    trireme::LoopCheckpoints checkpoints(*context, folder, trireme::sharded_loop(sharded, {&optimizer}));

    std::int64_t step = 0;
    double loss = 0;
    const auto train = [&](int steps) {
      for (int i = 0; i < steps; ++i) {
        torch::manual_seed(100 + ++step);
        const at::Tensor x = at::randn({8, 16});
        const at::Tensor mean = nn::functional::mse_loss(sharded.forward(x), x.narrow(1, 0, 8));
        optimizer.zero_grad();
        mean.backward();
        optimizer.step();
        loss = mean.item<double>();
      }
    };
    if (task == "save") {
      train(10);
      checkpoints.save(step);  // each rank writes its part
    } else {
      step = checkpoints.restore();  // each rank reads its part, of any number of files
    }
    trireme::save_whole(*context, trireme::sharded_loop(sharded),
                        folder + "/weights-" + task + ".safetensors");
    const auto at = static_cast<int>(step);
    train(10);
    if (context->is_main())
      std::printf("%s step %d with %d ranks; loss 10 steps later: %.6f\n", task.c_str(), at,
                  context->world_size(), loss);
  });
}
