// A custom training loop that shards weights, gradients and optimizer state over the ranks (ZeRO, FSDP):
//
//   trireme launch -n 4 -- example_own_loop_sharded [STEPS] [BACKEND] [FOLDER]
//
// Two losses, one of them on a second forward, and one backward: a Trainer does not support this. The output
// is the same, to rounding, for any number of ranks that divides 96. With a folder the loop saves a
// checkpoint every 100 steps, and resumes from it.
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>
#include <optional>

#include "trireme/trireme.h"

namespace nn = torch::nn;

int main(int argc, char** argv) {
  return trireme::run_main([&] {
    const auto context =
        trireme::Context::from_environment({.backend = argc > 2 ? argv[2] : "auto", .timeout_s = 30});
    const int num_steps = argc > 1 ? std::atoi(argv[1]) : 50;
    torch::manual_seed(1);
    nn::Sequential chain;
    for (int i = 0; i < 6; ++i) {
      chain->push_back(nn::Linear(64, 64));
      chain->push_back(nn::Tanh());
    }
    auto sharded = trireme::fully_shard(*context, chain);
    const auto optimizer =
        trireme::make_optimizer({.name = "adamw", .lr = 0.003, .weight_decay = 0}, sharded.parameters());

    std::optional<trireme::LoopCheckpoints> checkpoints;
    if (argc > 3) checkpoints.emplace(*context, argv[3], trireme::sharded_loop(sharded, *optimizer));
    const std::int64_t done = checkpoints ? checkpoints->restore() : 0;
    if (checkpoints && context->is_main()) std::printf("begins behind step %ld\n", static_cast<long>(done));

    for (std::int64_t step = done + 1; step <= num_steps; ++step) {
      const auto mine = [&](const at::Tensor& all) {
        return all.chunk(context->world_size())[static_cast<std::size_t>(context->rank())];
      };
      const at::Tensor x = mine(at::randn({96, 64})), noise = 0.1 * mine(at::randn({96, 64}));
      sharded.zero_grad();
      const at::Tensor output = sharded.forward(x), of_noisy = sharded.forward(x + noise);
      const at::Tensor loss = at::mse_loss(output, x.roll({1}, {1}).sin()) + at::mse_loss(of_noisy, output);
      loss.backward();  // gradients are reduced during backward; after it, each rank has those of its pieces
      const double norm = sharded.clip_grad_norm(1.0);
      optimizer->step();
      if (checkpoints && step % 100 == 0) {
        checkpoints->save(step);
        if (context->is_main()) std::printf("saved step %ld\n", static_cast<long>(step));
        std::fflush(stdout);
      }
      if (step % 10 != 0) continue;
      at::Tensor mean = loss.detach().clone();
      context->world().all_reduce(mean, trireme::ReduceOp::kAverage);
      if (context->is_main())
        std::printf("step %ld: loss %.3f, norm %.2f\n", static_cast<long>(step), mean.item<double>(), norm);
    }
    if (!checkpoints) return;
    at::Tensor sum = at::zeros({1}, at::kDouble);
    for (const auto& [name, piece] : sharded.parameters()) sum += piece.detach().sum();
    context->world().all_reduce(sum);
    if (context->is_main()) std::printf("weights %.17g\n", sum.item<double>());
  });
}
