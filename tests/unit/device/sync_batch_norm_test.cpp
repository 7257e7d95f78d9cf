// A batch norm over all ranks gives the results of the CPU on a device whose memory the host cannot access.
#include "trireme/parallel/data/sync_batch_norm.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <string>

#include "tests/support/stand_in_device.h"

namespace trireme::parallel {
namespace {

/// Results of one step on this rank's samples, on the CPU.
using NormResults = std::map<std::string, at::Tensor>;

NormResults norm_step(comm::Context& context, std::int64_t num_samples) {
  const auto there = [&](const at::Tensor& tensor) { return tensor.to(context.device()); };
  SyncBatchNormImpl norm(3, context.world(),
                         {.weight = there(at::arange(1, 4, at::kFloat)).requires_grad_(),
                          .bias = there(at::arange(3, at::kFloat)).requires_grad_(),
                          .running_mean = there(at::zeros({3})),
                          .running_var = there(at::ones({3})),
                          .num_batches_tracked = there(at::zeros({}, at::kLong))});
  const at::Tensor numbers = at::arange(num_samples * 12, at::kFloat).add(7 * context.rank()).sin();
  at::Tensor input = there(numbers.reshape({num_samples, 3, 4})).requires_grad_();
  const at::Tensor output = norm.forward(input);
  output.pow(3).sum().backward();
  norm.eval();
  return {{"output", output.detach().cpu()},
          {"of input", input.grad().cpu()},
          {"of weight", norm.weight.grad().cpu()},
          {"of bias", norm.bias.grad().cpu()},
          {"mean", norm.running_mean.cpu()},
          {"variance", norm.running_var.cpu()},
          {"evaluated", norm.forward(input).detach().cpu()}};
}

TEST(SyncBatchNormOnStandIn, GivesTheNumbersOfTheCpu) {
  const auto samples_of = [](const comm::Context& context) {
    return 5 - 5 * (context.rank() / 2) - context.rank() % 2;
  };
  std::mutex mutex;
  std::map<int, NormResults> expected;
  comm::run_ranks_as_threads(3, [&](comm::Context& context) {
    NormResults results = norm_step(context, samples_of(context));
    const std::lock_guard lock(mutex);
    expected[context.rank()] = std::move(results);
  });
  comm::run_ranks_as_threads(3,
                             [&](comm::Context& context) {
                               ASSERT_FALSE(context.device().is_cpu());
                               for (const auto& [name, found] : norm_step(context, samples_of(context))) {
                                 const at::Tensor& on_cpu = expected.at(context.rank()).at(name);
                                 ASSERT_EQ(found.sizes(), on_cpu.sizes())
                                     << name << " on rank " << context.rank();
                                 if (found.numel() == 0) continue;
                                 EXPECT_LE((found - on_cpu).abs().max().item<double>(), 1e-5)
                                     << name << " on rank " << context.rank();
                               }
                             },
                             {.device = test::kStandInDevice});
}

}  // namespace
}  // namespace trireme::parallel
