// A custom loop with libtorch's own data loader: each sample once per epoch, for any number of ranks. 1000
// samples are no whole number of batches. So ranks end an epoch with batches of different sizes, or without
// one.
//
//   trireme launch -n 3 -- example_own_loop_data_loader
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cstdio>
#include <vector>

#include "trireme/data/distributed_sampler.h"
#include "trireme/trireme.h"

namespace nn = torch::nn;

struct Samples : torch::data::datasets::Dataset<Samples> {
  torch::data::Example<> get(std::size_t index) override {
    const auto i = static_cast<std::int64_t>(index);
    return {x[i], y[i]};
  }
  std::optional<std::size_t> size() const override { return static_cast<std::size_t>(x.size(0)); }
  at::Tensor x = at::randn({1000, 8});
  at::Tensor y = x.sum(1, /*keepdim=*/true).sin();
};

int main() {
  return trireme::run_main([&] {
    const auto context = trireme::Context::from_environment();
    torch::manual_seed(1);  // the same samples and first weights on all ranks
    Samples samples;
    nn::Sequential model(nn::Linear(8, 64), nn::Tanh(), nn::Linear(64, 1));
    // Losses are sums over samples: parts of any size count by their samples.
    trireme::DistributedDataParallel ddp(*context, model.ptr(),
                                         {.scale = trireme::parallel::ReduceScale::kSum});
    torch::optim::SGD optimizer(model->parameters(), 0.1);

    constexpr std::int64_t kGlobalBatch = 96;
    trireme::data::DistributedSampler sampler(
        1000, {.rank = context->rank(), .world_size = context->world_size(), .seed = 5});
    const auto loader =
        torch::data::make_data_loader(samples.map(torch::data::transforms::Stack<>()), sampler,
                                      torch::data::DataLoaderOptions(kGlobalBatch / context->world_size()));
    const auto update = [&] {
      optimizer.step();
      optimizer.zero_grad();
    };
    for (std::uint64_t epoch = 0; epoch < 5; ++epoch) {
      sampler.set_epoch(epoch);
      at::Tensor sum = at::zeros({});
      auto batch = loader->begin();
      trireme::DistributedDataParallel::Join join(ddp, update);
      while (join.next(batch != loader->end())) {
        const at::Tensor loss = at::mse_loss(model->forward(batch->data), batch->target, at::Reduction::Sum);
        (loss / kGlobalBatch).backward();
        update();
        sum += loss.detach();
        ++batch;
      }
      context->world().all_reduce(sum);
      if (context->is_main())
        std::printf("epoch %d: loss %.5f\n", static_cast<int>(epoch), sum.item<double>() / 1000);
    }
  });
}
