// Trains a small convolutional network with batch norm for some steps and prints the results:
//   rank_ddp_steps BACKEND [STEPS [BREAK [COMPRESSION]]]
// "rank R: weights XXXX" is a digest of all parameters and buffers, the same on all ranks. In a long run,
// "rank R is under way" comes after a few steps. Errors from backward are marked. In step BREAK an exception
// ends backward on rank 0, after the first reductions have started, and rank 0 continues. COMPRESSION is that
// of gradients, with default options.
#include <ATen/ops/arange.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/data/distributed_data_parallel.h"

namespace {

std::uint64_t digest_of(const torch::nn::Module& module) {
  std::uint64_t digest = 14695981039346656037ULL;
  auto tensors = module.parameters();
  for (auto& buffer : module.buffers()) tensors.push_back(buffer);
  for (const auto& tensor : tensors) {
    const at::Tensor flat = tensor.contiguous();
    const auto* bytes = static_cast<const unsigned char*>(flat.const_data_ptr());
    for (std::size_t i = 0; i < flat.nbytes(); ++i) digest = (digest ^ bytes[i]) * 1099511628211ULL;
  }
  return digest;
}

/// Runs backward with an exception at the last gradient, and catches the exception.
void broken_backward(const at::Tensor& loss, const at::Tensor& last) {
  const unsigned hook =
      last.register_hook([](const at::Tensor&) { throw std::runtime_error("the test breaks this pass"); });
  try {
    loss.backward();
  } catch (const std::runtime_error& error) {
    std::printf("caught: %s\n", error.what());
  }
  last.remove_hook(hook);
}

}  // namespace

int main(int argc, char** argv) try {
  namespace nn = torch::nn;
  if (argc < 2 || argc > 5) return trireme::kExitUsage;
  const int num_steps = argc >= 3 ? std::atoi(argv[2]) : 4;
  const int broken_step = argc >= 4 ? std::atoi(argv[3]) : -1;
  const auto context = trireme::comm::Context::from_environment({.backend = argv[1], .timeout_s = 30});
  nn::Sequential model(nn::Conv2d(1, 4, 3), nn::BatchNorm2d(4), nn::Flatten(), nn::Linear(4 * 6 * 6, 10));
  trireme::DistributedDataParallel ddp(
      *context, model.ptr(),
      {.bucket_mib = 0.001,
       .first_bucket_mib = 0.001,
       .hook = trireme::parallel::make_comm_hook(argc == 5 ? argv[4] : "none")});
  for (int step = 0; step < num_steps; ++step) {
    ddp.zero_grad();
    const at::Tensor x = at::arange(4 * 64, at::kFloat).mul(0.7 + context->rank()).add(step).sin();
    const at::Tensor loss = model->forward(x.view({4, 1, 8, 8})).square().mean();
    try {
      if (step == broken_step && context->is_main()) {
        broken_backward(loss, model->parameters().front());
        continue;
      }
      loss.backward();
    } catch (const trireme::CommError& error) {
      throw trireme::CommError(trireme::text("backward of step ", step, ": ", error.what()));
    }
    if (step == 10) {
      std::printf("rank %d is under way\n", context->rank());
      std::fflush(stdout);
    }
    const at::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.sub_(parameter.grad(), 0.01);
  }
  std::printf("rank %d over %s: weights %016llx, buckets %zu, rebuilt %d\n", context->rank(),
              context->world().backend_name().c_str(), static_cast<unsigned long long>(digest_of(*model)),
              ddp.statistics().bucket_bytes.size(), static_cast<int>(ddp.statistics().rebuilt));
  return 0;
} catch (const trireme::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return error.exit_code();
}
