// PyTorch's tutorial "Getting Started with Fully Sharded Data Parallel (FSDP2)": a sharded transformer, mixed
// precision, gradient clipping, and the whole state saved and loaded.
//
//   trireme launch -n 2 -- example_tutorial_fsdp FOLDER [PRECISION]

#include <ATen/ops/randint.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/optim/adamw.h>

#include <cstdio>
#include <string>

#include "trireme/trireme.h"

namespace nn = torch::nn;

namespace {

constexpr std::int64_t kVocabulary = 64, kWidth = 32, kHeads = 4, kLayers = 4, kBatch = 16, kLength = 12;

// A child of the Sequential is a unit: gathered before it computes, and freed after it.
nn::Sequential transformer() {
  nn::Sequential net(nn::Embedding(kVocabulary, kWidth));
  for (int i = 0; i < kLayers; ++i)
    net->push_back(nn::TransformerEncoderLayer(
        nn::TransformerEncoderLayerOptions(kWidth, kHeads).dim_feedforward(4 * kWidth).dropout(0)));
  net->push_back(nn::LayerNorm(nn::LayerNormOptions({kWidth})));
  net->push_back(nn::Linear(kWidth, kVocabulary));
  return net;
}

// The type in which ranks gather the weights of linear layers. Shards stay f32.
at::ScalarType working_type(const std::string& precision) {
  return precision == "bf16" ? at::kBFloat16 : at::kFloat;
}

struct Training {
  Training(trireme::Context& world, nn::Sequential& net, const std::string& precision)
      : context(world),
        autocast_to(trireme::precision_of(precision)),
        sharded(trireme::fully_shard(world, net, {.zero = {.working_type = working_type(precision)}})),
        optimizer(trireme::tensors_of(sharded.parameters()), torch::optim::AdamWOptions(0.01)) {}

  double step(std::int64_t number) {
    torch::manual_seed(1000 * number + context.rank());
    const at::Tensor tokens = at::randint(kVocabulary, {kLength, kBatch}, at::kLong);
    at::Tensor output;
    {
      const trireme::PrecisionScope autocast(autocast_to, context.device().type());
      output = sharded.forward(tokens);
    }
    const at::Tensor loss =  // each token is its own target
        nn::functional::cross_entropy(output.to(at::kFloat).flatten(0, 1), tokens.flatten());
    optimizer.zero_grad();
    loss.backward();
    sharded.clip_grad_norm(1.0);
    optimizer.step();
    at::Tensor mean = loss.detach();
    context.world().all_reduce(mean, trireme::ReduceOp::kAverage);
    return mean.item<double>();
  }

  trireme::Context& context;
  trireme::Precision autocast_to;
  trireme::FullyShardedDataParallel sharded;
  torch::optim::AdamW optimizer;
};

}  // namespace

int main(int argc, char** argv) {
  return trireme::run_main([&] {
    const std::string folder = argc > 1 ? argv[1] : "runs/tutorial_fsdp";
    const std::string precision = argc > 2 ? argv[2] : "bf16";
    const auto context = trireme::Context::from_environment();

    nn::Sequential net = transformer();
    Training training(*context, net, precision);
    std::int64_t held = 0, whole = 0;
    for (const auto& [name, shard] : training.sharded.parameters()) held += shard.numel();
    for (const auto& each : transformer()->parameters()) whole += each.numel();
    std::printf("rank %d holds %ld of %ld parameters\n", context->rank(), held, whole);

    for (std::int64_t number = 1; number <= 20; ++number) {
      const double loss = training.step(number);
      if (context->is_main() && number % 10 == 0) std::printf("step %ld: loss %.9f\n", number, loss);
    }
    trireme::LoopCheckpoints checkpoints(*context, folder,  // weights and optimizer state
                                         trireme::sharded_loop(training.sharded, {&training.optimizer}));
    checkpoints.save(20);
    trireme::save_whole(*context, trireme::sharded_loop(training.sharded), *net, folder + "/model.pt");
    const double next = training.step(21);

    nn::Sequential other = transformer();
    Training loaded(*context, other, precision);
    trireme::LoopCheckpoints again(*context, folder,
                                   trireme::sharded_loop(loaded.sharded, {&loaded.optimizer}));
    const std::int64_t done = again.restore();
    const double resumed = loaded.step(done + 1);
    if (context->is_main()) std::printf("step 21: loss %.9f, of the loaded state %.9f\n", next, resumed);

    nn::Sequential from_file = transformer();  // whole, without shards
    trireme::load_whole(*context, *from_file, folder + "/model.pt");
    Training of_file(*context, from_file, precision);
    const double weights_only = of_file.step(21);
    if (context->is_main()) std::printf("step 21: loss of model.pt %.9f\n", weights_only);
  });
}
