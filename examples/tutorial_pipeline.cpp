// PyTorch's tutorial "Introduction to Distributed Pipeline Parallelism": a transformer split into two stages,
// trained with GPipe in four micro-batches.
//
//   trireme launch -n 2 -- example_tutorial_pipeline

#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/optim/sgd.h>

#include <cstdio>

#include "trireme/trireme.h"

namespace nn = torch::nn;

namespace {

constexpr std::int64_t kVocabulary = 100, kWidth = 64, kHeads = 4, kLayers = 8, kBatch = 32, kLength = 16;

// Micro-batches are rows of the batch. libtorch's layers have the sequence in the first dim.
struct DecoderImpl : nn::Module {
  DecoderImpl()
      : layer(register_module(
            "layer",
            nn::TransformerDecoderLayer(
                nn::TransformerDecoderLayerOptions(kWidth, kHeads).dim_feedforward(2 * kWidth).dropout(0)))) {
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor sequences = input.transpose(0, 1);
    return layer->forward(sequences, sequences).transpose(0, 1);
  }
  nn::TransformerDecoderLayer layer;
};
TORCH_MODULE(Decoder);

nn::Sequential transformer() {
  nn::Sequential net(nn::Embedding(kVocabulary, kWidth));
  for (int i = 0; i < kLayers; ++i) net->push_back(Decoder());
  net->push_back(nn::LayerNorm(nn::LayerNormOptions({kWidth})));
  net->push_back(nn::Linear(kWidth, kVocabulary));
  return net;
}

at::Tensor tokenwise_loss(const at::Tensor& output, const at::Tensor& target) {
  return nn::functional::cross_entropy(output.flatten(0, 1), target.flatten());
}

}  // namespace

int main() {
  return trireme::run_main([] {
    // One thread per rank, so that one rank and two ranks give the same bits.
    const auto context = trireme::Context::from_environment({.torch_threads = 1});
    torch::manual_seed(1);
    nn::Sequential net = transformer();
    const at::Tensor x = at::randint(kVocabulary, {kBatch, kLength}, at::kLong);
    const at::Tensor y = at::randint(kVocabulary, {kBatch, kLength}, at::kLong);

    trireme::PipelineOptions options{.schedule = "gpipe", .num_microbatches = 4};
    if (context->world_size() == 2) options.cuts = {1 + kLayers / 2};  // the embedding and half of the layers
    trireme::Pipeline pipe(*context, trireme::layers_of(net), options);
    torch::optim::SGD optimizer(trireme::tensors_of(pipe.parameters()), 0.1);
    std::printf("rank %d has %zu parameter tensors\n", context->rank(), pipe.parameters().size());

    for (int step = 1; step <= 20; ++step) {
      pipe.zero_grad();
      const double loss = pipe.step(x, y, tokenwise_loss);  // four micro-batches through both stages
      optimizer.step();
      if (context->is_main() && (step == 1 || step % 10 == 0))
        std::printf("step %d: loss %.9f\n", step, loss);
    }
  });
}
