// A few training steps with several number formats, and with layers that have state.
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>

#include "tests/unit/parallel/small_models.h"
#include "trireme/parallel/data/distributed_data_parallel.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using test::numbers;
using test::TwoLayers;

void descend(const torch::nn::Module& module, double lr) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) {
    if (parameter.grad().defined()) parameter.sub_(parameter.grad(), lr);
  }
}

/// Whether the tensor has the same bits as on rank 0. Collective.
bool same_on_all_ranks(Context& context, const at::Tensor& tensor) {
  at::Tensor of_root = tensor.detach().clone();
  context.world().broadcast(of_root, 0);
  return at::equal(of_root, tensor.detach());
}

class Bf16Module : public testing::TestWithParam<int> {
 protected:
  static std::shared_ptr<TwoLayers> model() {
    auto model = std::make_shared<TwoLayers>();
    for (auto& parameter : model->norm->parameters()) parameter.set_requires_grad(false);
    model->to(at::kBFloat16);
    return model;
  }
  static at::Tensor loss(TwoLayers& model, int rank) {
    return model.forward(numbers({6, 4}, 3 + rank).to(at::kBFloat16)).to(at::kFloat).square().mean();
  }
};

TEST_P(Bf16Module, GetsMeanOfRanksUpToRounding) {
  at::Tensor mean = at::zeros_like(model()->first->weight, at::kFloat);
  for (int rank = 0; rank < GetParam(); ++rank) {
    auto alone = model();
    loss(*alone, rank).backward();
    mean = mean + alone->first->weight.grad().to(at::kFloat) / GetParam();
  }
  // bf16 has 8 significant bits. The sum is rounded at most once per rank, and the division rounds once more.
  const double bound = (GetParam() + 1) * mean.abs().max().item<double>() / 256;
  run_ranks_as_threads(GetParam(), [&](Context& context) {
    auto replica = model();
    DistributedDataParallel ddp(context, replica);
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      loss(*replica, context.rank()).backward();
      const at::Tensor& gradient = replica->first->weight.grad();
      EXPECT_EQ(gradient.scalar_type(), at::kBFloat16);
      EXPECT_LE((gradient.to(at::kFloat) - mean).abs().max().item<double>(), bound);
    }
  });
}

TEST_P(Bf16Module, TrainsWithBitwiseEqualReplicas) {
  run_ranks_as_threads(GetParam(), [&](Context& context) {
    auto replica = model();
    DistributedDataParallel ddp(context, replica);
    double first = 0, last = 0;
    for (int step = 0; step < 10; ++step) {
      ddp.zero_grad();
      const at::Tensor now = loss(*replica, context.rank());
      now.backward();
      descend(*replica, 0.1);
      last = now.item<double>();
      if (step == 0) first = last;
    }
    EXPECT_LT(last, 0.8 * first);
    for (const auto& item : replica->named_parameters()) {
      EXPECT_TRUE(same_on_all_ranks(context, item.value())) << item.key() << " on rank " << context.rank();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Bf16Module, testing::Values(2, 3, 4));

/// A convolution, batch norm and a linear layer that train on four ranks with different images.
class BatchNormOverFourRanks : public testing::Test {
 protected:
  /// `after_step` gets the module and its buffers after the forward.
  static void train(
      const DataParallelOptions& options,
      const std::function<void(Context&, torch::nn::Module&, const std::vector<at::Tensor>&)>& after_step) {
    run_ranks_as_threads(4, [&](Context& context) {
      torch::nn::Sequential model(torch::nn::Conv2d(2, 3, 3), torch::nn::BatchNorm2d(3),
                                  torch::nn::Linear(4, 5));
      test::fill_parameters(*model);
      DistributedDataParallel ddp(context, model.ptr(), options);
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        const at::Tensor loss =
            model->forward(numbers({2, 2, 6, 6}, step + 10 * context.rank())).square().mean();
        std::vector<at::Tensor> buffers;
        for (const auto& buffer : model->buffers()) buffers.push_back(buffer.clone());
        loss.backward();
        descend(*model, 0.1);
        after_step(context, *model, buffers);
      }
    });
  }
};

TEST_F(BatchNormOverFourRanks, StepsEndWithBuffersOfRankZero) {
  train({}, [](Context& context, torch::nn::Module& model, const std::vector<at::Tensor>& from_forward) {
    const auto buffers = model.buffers();
    ASSERT_EQ(buffers.size(), 3u) << "running mean and variance, and the number of batches";
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      at::Tensor expected = from_forward[i].clone();
      context.world().broadcast(expected, 0);
      EXPECT_TRUE(at::equal(buffers[i], expected)) << "buffer " << i << " on rank " << context.rank();
    }
    EXPECT_EQ(same_on_all_ranks(context, from_forward[0]), context.rank() == 0) << "else nothing was to do";
    for (const auto& parameter : model.parameters()) {
      EXPECT_TRUE(same_on_all_ranks(context, parameter));
    }
  });
}

TEST_F(BatchNormOverFourRanks, BuffersStayLocalWithoutBroadcast) {
  train({.broadcast_buffers = false},
        [](Context& context, torch::nn::Module& model, const std::vector<at::Tensor>& from_forward) {
          const auto buffers = model.buffers();
          for (std::size_t i = 0; i < buffers.size(); ++i) {
            EXPECT_TRUE(at::equal(buffers[i], from_forward[i])) << "buffer " << i;
          }
          EXPECT_EQ(same_on_all_ranks(context, buffers[0]), context.rank() == 0);
          for (const auto& parameter : model.parameters()) {
            EXPECT_TRUE(same_on_all_ranks(context, parameter));
          }
        });
}

}  // namespace
}  // namespace trireme::parallel
