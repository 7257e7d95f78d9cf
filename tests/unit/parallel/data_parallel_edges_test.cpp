// Actions of real loops: optimizers that zero gradients in place, tied and mixed parameters, memory formats,
// user-defined hooks, errors on one rank.
#include <ATen/ops/embedding.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>

#include <map>

#include "tests/unit/parallel/data_parallel_case.h"

namespace trireme::parallel {
namespace {

/// Gradient of the first layer's weight for the samples of one rank, computed on one process.
at::Tensor first_gradient(int rank) {
  TwoLayers model;
  loss_of_rank(model, rank).backward();
  return model.first->weight.grad().clone();
}

TEST(DataParallelEdges, SumIsBitwiseInRankOrder) {
  const at::Tensor expected = first_gradient(0).add(first_gradient(1)).div(2);
  run_ranks_as_threads(2, [&](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model);
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      loss_of_rank(*model, context.rank()).backward();
      EXPECT_TRUE(at::equal(model->first->weight.grad(), expected)) << "step " << step;
    }
  });
}

TEST(DataParallelEdges, TorchOptimizersZeroGradientsInPlace) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    const at::Tensor before = model->first->weight.detach().clone();
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad(/*set_to_none=*/false);
      loss_of_rank(*model, context.rank()).backward();
      if (step == 0) optimizer.step();
    }
    EXPECT_FALSE(at::equal(model->first->weight, before));
  });
}

TEST(DataParallelEdges, AdoptsGradientReplacedByUser) {
  const at::Tensor expected = first_gradient(0).add(first_gradient(1)).div(2).add(1);
  run_ranks_as_threads(2, [&](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model);
    loss_of_rank(*model, context.rank()).backward();
    ddp.zero_grad();
    model->first->weight.mutable_grad() = at::full_like(model->first->weight, 1).detach();
    loss_of_rank(*model, context.rank()).backward();
    EXPECT_LE((model->first->weight.grad() - expected).abs().max().item<double>(), 1e-6);
  });
}

TEST(DataParallelEdges, RejectsAccumulationIntoSummedGradients) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model, {.scale = ReduceScale::kSum});
    loss_of_rank(*model, context.rank()).backward();
    model->zero_grad(/*set_to_none=*/false);
    loss_of_rank(*model, context.rank()).backward();
    EXPECT_THAT([&] { loss_of_rank(*model, context.rank()).backward(); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr("zero_grad()")));
  });
}

TEST(DataParallelEdges, ChannelsLastParametersKeepTheirLayout) {
  run_ranks_as_threads(2, [](Context& context) {
    const auto convolution_of = [] {
      torch::nn::Conv2d convolution(torch::nn::Conv2dOptions(3, 4, 3).bias(false));
      const at::NoGradGuard no_grad;
      const auto values = numbers({4, 3, 3, 3}, 1).contiguous(at::MemoryFormat::ChannelsLast);
      convolution->weight.set_data(values);
      return convolution;
    };
    const auto loss = [](torch::nn::Conv2d& convolution, int rank) {
      return convolution->forward(numbers({2, 3, 8, 8}, rank)).square().mean();
    };
    auto convolution = convolution_of();
    DistributedDataParallel ddp(context, convolution.ptr());
    at::Tensor expected = at::zeros_like(convolution->weight);
    for (int rank = 0; rank < 2; ++rank) {
      auto alone = convolution_of();
      loss(alone, rank).backward();
      expected = expected + alone->weight.grad();
    }
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      loss(convolution, context.rank()).backward();
      EXPECT_TRUE(convolution->weight.grad().is_contiguous(at::MemoryFormat::ChannelsLast));
      EXPECT_LE((convolution->weight.grad() - expected / 2).abs().max().item<double>(), 1e-6);
    }
  });
}

struct Tied : torch::nn::Module {
  Tied() : one(register_module("one", torch::nn::Linear(4, 4))), two(register_module("two", one.ptr())) {
    test::fill_parameters(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return two->forward(one->forward(x).tanh()); }
  torch::nn::Linear one;
  std::shared_ptr<torch::nn::LinearImpl> two;
};

TEST(DataParallelEdges, ATiedParameterIsReducedOnce) {
  run_ranks_as_threads(3, [](Context& context) {
    auto model = std::make_shared<Tied>();
    DistributedDataParallel ddp(context, model);
    at::Tensor expected = at::zeros_like(model->one->weight);
    for (int rank = 0; rank < 3; ++rank) {
      Tied alone;
      alone.forward(numbers({2, 4}, rank)).sum().backward();
      expected = expected + alone.one->weight.grad() / 3;
    }
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      model->forward(numbers({2, 4}, context.rank())).sum().backward();
      EXPECT_LE((model->one->weight.grad() - expected).abs().max().item<double>(), 1e-6);
    }
  });
}

TEST(DataParallelEdges, ParameterTypesHaveSeparateBuckets) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = model_without_norm();
    model->second->to(at::kDouble);
    DistributedDataParallel ddp(context, model);
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      const at::Tensor hidden = model->first->forward(numbers({6, 4}, context.rank()));
      model->second->forward(hidden.to(at::kDouble)).sum().backward();
    }
    EXPECT_EQ(ddp.statistics().bucket_bytes.size(), 2u);
    EXPECT_EQ(model->second->weight.grad().scalar_type(), at::kDouble);
    EXPECT_DOUBLE_EQ(model->second->bias.grad()[0].item<double>(), 6.0);
  });
}

struct Tables : torch::nn::Module {
  explicit Tables(bool sparse)
      : dense(register_module("dense", torch::nn::Embedding(4, 2))),
        words(
            register_module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).sparse(sparse)))),
        own(register_parameter("own", numbers({4, 2}, 1))) {}
  torch::nn::Embedding dense;
  torch::nn::Embedding words;
  at::Tensor own;
};

TEST(DataParallelEdges, RejectsSparseEmbeddingsByParameter) {
  run_ranks_as_threads(2, [](Context& context) {
    EXPECT_THAT([&] { DistributedDataParallel(context, std::make_shared<Tables>(true)); },
                testing::ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr("parameter 'words.weight'"), HasSubstr("sparse(false)"))));
    const torch::nn::Embedding alone(torch::nn::EmbeddingOptions(4, 2).sparse(true));
    EXPECT_THAT([&] { DistributedDataParallel(context, alone.ptr()); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr("parameter 'weight'")));
    const torch::nn::EmbeddingBag bag(torch::nn::EmbeddingBagOptions(4, 2).sparse(true).mode(torch::kSum));
    EXPECT_THAT([&] { DistributedDataParallel(context, bag.ptr()); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr("parameter 'weight'")));
  });
}

TEST(DataParallelEdges, RejectsSparseFunctionGradientsByParameter) {
  run_ranks_as_threads(2, [](Context& context) {
    auto tables = std::make_shared<Tables>(false);
    DistributedDataParallel ddp(context, tables);
    const at::Tensor words = at::arange(3, at::kLong);
    EXPECT_THAT(
        [&] {
          at::embedding(tables->own, words, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false, /*sparse=*/true)
              .sum()
              .backward();
        },
        testing::ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("parameter 'own'"), HasSubstr("sparse"))));
  });
}

/// A layer with complex parameters, next to a real one.
struct Spectral : torch::nn::Module {
  explicit Spectral(int rank)
      : weight(register_parameter("spectral", at::view_as_complex(numbers({3, 2}, 1 + rank)))),
        phases(register_buffer("phases", at::view_as_complex(numbers({4, 2}, 7 + rank)))),
        bias(register_parameter("bias", numbers({3}, 2 + rank))) {}
  at::Tensor weight, phases, bias;
};

TEST(DataParallelEdges, RejectsComplexParameterByName) {
  run_ranks_as_threads(2, [](Context& context) {
    const auto model = std::make_shared<Spectral>(0);
    const auto rejected = testing::ThrowsMessage<InvalidArgument>(
        AllOf(HasSubstr("parameter 'spectral' is complex"), HasSubstr("at::view_as_real")));
    EXPECT_THAT([&] { DistributedDataParallel(context, model); }, rejected);
    model->weight.requires_grad_(false);
    DistributedDataParallel ddp(context, model);
    model->weight.requires_grad_(true);
    EXPECT_THAT([&] { model->bias.square().sum().backward(); }, rejected);
  });
}

TEST(DataParallelEdges, ComplexBuffersFollowRankZero) {
  run_ranks_as_threads(2, [](Context& context) {
    const auto model = std::make_shared<Spectral>(context.rank());
    model->weight.requires_grad_(false);
    DistributedDataParallel ddp(context, model);
    const Spectral expected(0);
    EXPECT_TRUE(at::equal(at::view_as_real(model->weight), at::view_as_real(expected.weight.detach())));
    EXPECT_TRUE(at::equal(at::view_as_real(model->phases), at::view_as_real(expected.phases)));
    if (context.is_main()) at::view_as_real(model->phases).mul_(2);
    model->bias.square().sum().backward();
    EXPECT_TRUE(at::equal(at::view_as_real(model->phases), at::view_as_real(expected.phases) * 2));
  });
}

TEST(DataParallelEdges, WrappingAModuleTwiceIsRejected) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = model_without_norm();
    const DistributedDataParallel ddp(context, model);
    EXPECT_THAT([&] { DistributedDataParallel(context, model); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr("wrapped twice")));
    EXPECT_NE(torch::autograd::impl::post_acc_grad_hooks(model->first->weight), nullptr);
  });
}

TEST(DataParallelEdges, ParameterMissingOnRankStopsAll) {
  run_ranks_as_threads(3, [](Context& context) {
    auto model = model_without_norm();
    model->use_second = context.rank() != 1;
    DistributedDataParallel ddp(context, model);
    EXPECT_THAT([&] { loss_of_rank(*model, context.rank()).backward(); },
                testing::ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr("rank 1: 'second.weight', 'second.bias'"), HasSubstr("kFind"))));
    // The wrapper still works: the next step succeeds.
    model->use_second = true;
    ddp.zero_grad();
    loss_of_rank(*model, context.rank()).backward();
  });
}

TEST(DataParallelEdges, RejectsChangedStaticUsageByName) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model, {.unused_parameters = UnusedParameters::kStatic});
    loss_of_rank(*model, context.rank()).backward();
    model->use_second = false;
    EXPECT_THAT(
        [&] { loss_of_rank(*model, context.rank()).backward(); },
        testing::ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("'second.weight'"), HasSubstr("kStatic"))));
  });
}

TEST(DataParallelEdges, DifferentOptionsNameBothSides) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = model_without_norm();
    EXPECT_THAT(
        [&] { DistributedDataParallel(context, model, {.bucket_mib = 1.0 + context.rank()}); },
        testing::ThrowsMessage<CommError>(HasSubstr("option bucket_mib is 1 on rank 0 and 2 on rank 1")));
  });
}

class NegatingHook : public CommHook {
 public:
  std::function<void()> start(comm::Group& group, GradientBucket& bucket, ReduceScale) override {
    return [flat = bucket.flat, pending = group.all_reduce_async(bucket.flat)]() mutable {
      pending.wait();
      flat.neg_();
    };
  }
};

TEST(DataParallelEdges, CustomHookDecidesGradients) {
  const at::Tensor expected = first_gradient(0).add(first_gradient(1)).neg();
  run_ranks_as_threads(2, [&](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model, {.hook = std::make_shared<NegatingHook>()});
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      loss_of_rank(*model, context.rank()).backward();
      EXPECT_TRUE(at::equal(model->first->weight.grad(), expected));
    }
  });
}

TEST(DataParallelEdges, JoinAndNoSyncKeepReplicasEqual) {
  constexpr int kRanks = 3;
  std::vector<at::Tensor> weights(kRanks);
  run_ranks_as_threads(kRanks, [&](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model, {.unused_parameters = UnusedParameters::kFind});
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const auto update = [&] {
      optimizer.step();
      optimizer.zero_grad();
    };
    int left = 4 - context.rank();
    for (DistributedDataParallel::Join join(ddp, update); join.next(left > 0); --left) {
      {
        const auto quiet = ddp.no_sync();
        loss_of_rank(*model, left).backward();
      }
      model->use_second = left % 2 == 0;
      loss_of_rank(*model, left).backward();
      model->use_second = true;
      update();
    }
    EXPECT_EQ(ddp.statistics().reductions, 4u);
    weights[static_cast<std::size_t>(context.rank())] = model->first->weight.detach().clone();
  });
  for (int rank = 1; rank < kRanks; ++rank)
    EXPECT_TRUE(at::equal(weights[static_cast<std::size_t>(rank)], weights[0])) << "rank " << rank;
}

TEST(DataParallelEdges, BucketsFollowTheObservedOrder) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model, {.bucket_mib = 1, .first_bucket_mib = 1e-6});
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      // The layers in reverse order. "second" is used first, so its gradients come last.
      const at::Tensor hidden = model->second->forward(numbers({6, 5}, 1)).tanh();
      (hidden.sum() * model->first->forward(numbers({6, 4}, 1)).sum()).backward();
    }
    EXPECT_TRUE(ddp.statistics().rebuilt);
    EXPECT_EQ(ddp.statistics().bucket_bytes.size(), 2u);
  });
}

}  // namespace
}  // namespace trireme::parallel
