// Activation checkpointing in a libtorch program: blocks keep only their inputs for backward, by the line
// marked with (+). Gradients are those of the program without it, bit by bit, dropout included. Prints how
// often a block has run and the largest difference: example_checkpointed.
#include <ATen/ops/randn.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "trireme/trireme.h"

namespace nn = torch::nn;

namespace {

struct Net : nn::Module {
  Net() {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(register_module(
          "block" + std::to_string(i),
          nn::Sequential(nn::Linear(64, 256), nn::GELU(), nn::Dropout(0.1), nn::Linear(256, 64))));
    }
  }

  at::Tensor forward(at::Tensor x, bool checkpoints) {
    for (nn::Sequential& block : blocks) {
      auto run = [this, block](const at::Tensor& in) mutable {
        ++runs;
        return in + block->forward(in);
      };
      x = checkpoints ? at::Tensor(trireme::checkpointed(run, x, {.name = "block"}))  // (+)
                      : run(x);
    }
    return x;
  }

  std::vector<nn::Sequential> blocks;
  int runs = 0;
};

std::vector<at::Tensor> gradients(Net& net, bool checkpoints) {
  net.zero_grad();
  torch::manual_seed(1);
  net.forward(at::randn({32, 64}), checkpoints).square().mean().backward();
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : net.parameters()) all.push_back(parameter.grad().clone());
  return all;
}

}  // namespace

int main() {
  return trireme::run_main([&] {
    Net net;
    const auto plain = gradients(net, false);
    std::printf("plain: %d runs of a block\n", net.runs);
    net.runs = 0;
    const auto again = gradients(net, true);
    double most = 0;
    for (std::size_t i = 0; i < plain.size(); ++i)
      most = std::max(most, (plain[i] - again[i]).abs().max().item<double>());
    std::printf("checkpointed: %d runs of a block, largest difference of a gradient %g\n", net.runs, most);
    return most == 0 ? 0 : 1;
  });
}
