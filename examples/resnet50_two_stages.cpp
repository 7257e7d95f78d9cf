// ResNet-50 on two devices, as in PyTorch's tutorial "Single-Machine Model Parallel Best Practices": cut
// after layer2, random images and one-hot labels, mean squared error, SGD. First the stages compute the whole
// batch one after the other (naive), then micro-batches concurrently:
//
//   trireme launch -n 2 -- example_resnet50_two_stages [SPLIT] [BATCH] [IMAGE_SIZE]
//
// SPLIT is the size of a micro-batch (default: 20 of a batch of 120 images of 64x64). `trireme bench
// pipeline-resnet50` has error bars, more sizes, and a comparison with one process.
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cstdio>
#include <cstdlib>

#include "trireme/base/clock.h"
#include "trireme/trireme.h"

namespace {

using namespace trireme;

constexpr int kClasses = 1000;
constexpr int kFirstLayerBehindLayer2 = 8;

struct Batch {
  at::Tensor images, labels;
};

/// Seconds of a step. A warm-up step before it fills caches, and gives the stages their shapes.
double seconds_of(Context& context, Model& model, const Batch& batch, const std::string& schedule,
                  int num_microbatches) {
  Pipeline pipe(
      context, model.layers(),
      {.schedule = schedule, .num_microbatches = num_microbatches, .cuts = {kFirstLayerBehindLayer2}});
  const auto optimizer = make_optimizer({.name = "sgd", .lr = 0.001, .momentum = 0}, pipe.parameters());
  const auto loss = [](const at::Tensor& output, const at::Tensor& target) {
    return at::mse_loss(output, target);
  };
  double begin_s = 0;
  for (int step = 0; step < 2; ++step) {
    context.world().barrier();
    begin_s = now_s();
    pipe.zero_grad();
    pipe.step(batch.images, batch.labels, loss);
    optimizer->step();
    context.world().barrier();
  }
  return now_s() - begin_s;
}

}  // namespace

int main(int argc, char** argv) {
  return trireme::run_main([&] {
    const auto number = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
    const int split = number(1, 20), size = number(2, 120), image = number(3, 64);
    const auto context = Context::from_environment({.timeout_s = 600, .torch_threads = 1});
    require(context->world_size() == 2 && split >= 1 && split <= size,
            "this is for 2 ranks and a split of at most the batch: trireme launch -n 2 -- ", argv[0]);
    const auto model = model::make_model({.name = "resnet50"}, {3, image, image}, kClasses, /*seed=*/1);
    Batch batch{at::randn({size, 3, image, image}), at::zeros({size, kClasses})};
    batch.labels.scatter_(1, at::randint(kClasses, {size, 1}, at::kLong), 1);
    const double naive_s = seconds_of(*context, *model, batch, "naive", 1);
    const double pipelined_s = seconds_of(*context, *model, batch, "1f1b", (size + split - 1) / split);
    if (context->is_main()) std::printf("naive %.3f s, pipelined %.3f s\n", naive_s, pipelined_s);
  });
}
