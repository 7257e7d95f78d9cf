// PowerSGD compared with PyTorch's hook: data/power_sgd.safetensors, made by power_sgd_reference.py.

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/paths.h"
#include "trireme/base/text.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/data/distributed_data_parallel.h"

namespace trireme::parallel {
namespace {

/// Starts from the random factors of PyTorch. PyTorch orthogonalises both factors, and we only the first one.
/// Their product is the same up to rounding: a few units in the last place (1.2e-7) of residuals up to 10.
TEST(PowerSgdParity, TakesTheStepsOfPyTorchsHook) {
  const auto file = checkpoint::load_safetensors(std::filesystem::path(test::checkout("tests/parity/data")) /
                                                 "power_sgd.safetensors");
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    optim::NamedTensors parameters;
    for (const char* name : {"linear", "conv"}) {
      const at::Tensor like = file.tensors.at(text("reduced/", name))[0];
      parameters.emplace_back(name, at::zeros(like.sizes()).requires_grad_());
    }
    CompressionOptions options;
    options.name = "power-sgd";
    options.rank = 2;
    options.min_numel = 1;
    const auto hook = make_comm_hook(options);
    DistributedDataParallel ddp(context.world(), Replica{.parameters = parameters, .buffers = {}},
                                {.hook = hook});
    for (auto& [name, tensor] : hook->state().common) at::Tensor(tensor).copy_(file.tensors.at(name));
    const std::int64_t steps = file.tensors.at("reduced/linear").size(0);
    ASSERT_EQ(steps, 5);
    for (std::int64_t step = 0; step < steps; ++step) {
      ddp.zero_grad();
      at::Tensor loss = at::zeros({});
      for (const auto& [name, tensor] : parameters)
        loss = loss + (tensor * file.tensors.at(text("gradient/", context.rank(), "/", name))[step]).sum();
      loss.backward();
      for (const auto& [name, tensor] : parameters) {
        const at::Tensor expected = file.tensors.at("reduced/" + name)[step];
        EXPECT_GT(expected.abs().max().item<double>(), 0.5);
        EXPECT_LE((tensor.grad() - expected).abs().max().item<double>(), 2e-5) << name << ", step " << step;
      }
    }
  });
}

}  // namespace
}  // namespace trireme::parallel
