#include "trireme/parallel/data/distributed_data_parallel.h"

#include <ATen/ops/ones.h>

#include <cstdlib>
#include <map>

#include "tests/unit/parallel/counting_hook.h"
#include "tests/unit/parallel/data_parallel_case.h"

namespace trireme::parallel {
namespace {

using Gradients = std::map<std::string, at::Tensor>;

Gradients gradients_of(const torch::nn::Module& module) {
  Gradients gradients;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& gradient = item.value().grad();
    gradients[item.key()] = gradient.defined() ? gradient.clone() : gradient;
  }
  return gradients;
}

/// Part `rank` of `size` of 12 samples.
at::Tensor input_of(int rank, int size) {
  return numbers({12, 4}, 7).chunk(size)[static_cast<std::size_t>(rank)];
}

at::Tensor loss_of(TwoLayers& model, const at::Tensor& input) { return model.forward(input).square().mean(); }

void expect_close(const Gradients& got, const Gradients& expected, double bound) {
  for (const auto& [name, gradient] : expected) {
    ASSERT_EQ(got.at(name).defined(), gradient.defined()) << name;
    if (!gradient.defined()) continue;
    EXPECT_LE((got.at(name) - gradient).abs().max().item<double>(), bound) << name;
  }
}

Gradients serial_gradients() {
  TwoLayers model;
  loss_of(model, numbers({12, 4}, 7)).backward();
  return gradients_of(model);
}

class DataParallelRanks : public testing::TestWithParam<int> {};

// f32 sums of at most 12 terms of size 1, added in another order, differ by a few units in the last place.
constexpr double kSumOrderBound = 2e-7;

TEST_P(DataParallelRanks, GradientsEqualGlobalBatchOfOne) {
  const Gradients serial = serial_gradients();
  run_ranks_as_threads(GetParam(), [&](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model, {.bucket_mib = 1e-5, .first_bucket_mib = 1e-5});
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      loss_of(*model, input_of(context.rank(), context.world_size())).backward();
      expect_close(gradients_of(*model), serial, kSumOrderBound);
    }
    EXPECT_EQ(ddp.statistics().reductions, 3u);
    EXPECT_TRUE(ddp.statistics().rebuilt);
    EXPECT_EQ(ddp.statistics().bucket_bytes.size(), 4u);
  });
}

TEST_P(DataParallelRanks, NoSyncAccumulatesForNextReduction) {
  const Gradients serial = serial_gradients();
  run_ranks_as_threads(GetParam(), [&](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model);
    const auto parts = input_of(context.rank(), context.world_size()).chunk(3);
    const auto share = static_cast<double>(parts.size());
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      {
        const auto quiet = ddp.no_sync();
        for (std::size_t i = 0; i + 1 < parts.size(); ++i) (loss_of(*model, parts[i]) / share).backward();
      }
      (loss_of(*model, parts.back()) / share).backward();
      expect_close(gradients_of(*model), serial, kSumOrderBound);
    }
    EXPECT_EQ(ddp.statistics().reductions, 3u);
  });
}

TEST_P(DataParallelRanks, SumScaleLeavesDivisionToLoss) {
  const Gradients serial = serial_gradients();
  run_ranks_as_threads(GetParam(), [&](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model, {.scale = ReduceScale::kSum});
    (loss_of(*model, input_of(context.rank(), context.world_size())) / context.world_size()).backward();
    expect_close(gradients_of(*model), serial, kSumOrderBound);
  });
}

TEST_P(DataParallelRanks, UnevenInputsEndWithSameWeights) {
  const int ranks = GetParam();
  std::vector<Gradients> weights(static_cast<std::size_t>(ranks));
  std::vector<int> steps(static_cast<std::size_t>(ranks));
  run_ranks_as_threads(ranks, [&](Context& context) {
    auto model = std::make_shared<TwoLayers>();
    model->use_norm = true;
    DistributedDataParallel ddp(context, model);
    int left = 1 + context.rank();
    for (DistributedDataParallel::Join join(ddp); join.next(left > 0); --left) {
      ddp.zero_grad();
      loss_of(*model, input_of(context.rank(), context.world_size()) + left).backward();
      const at::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) parameter.sub_(parameter.grad(), 0.1);
      ++steps[static_cast<std::size_t>(context.rank())];
    }
    auto& mine = weights[static_cast<std::size_t>(context.rank())];
    for (const auto& item : model->named_parameters()) mine[item.key()] = item.value().detach().clone();
    for (const auto& item : model->named_buffers()) mine[item.key()] = item.value().to(at::kFloat);
  });
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(steps[static_cast<std::size_t>(rank)], 1 + rank);
    expect_close(weights[static_cast<std::size_t>(rank)], weights[0], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, DataParallelRanks, testing::Values(2, 3, 4));

TEST(DataParallel, GradientsAreViewsIntoBuckets) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model);
    for (int step = 0; step < 2; ++step) loss_of(*model, input_of(context.rank(), 2)).backward();
    const at::Tensor &weight = model->first->weight.grad(), &bias = model->first->bias.grad();
    const auto apart_bytes = static_cast<const std::byte*>(weight.const_data_ptr()) -
                             static_cast<const std::byte*>(bias.const_data_ptr());
    EXPECT_LE(std::abs(apart_bytes), 128) << "both gradients lie in one bucket";
    EXPECT_EQ(ddp.statistics().bucket_bytes.size(), 1u);
  });
}

TEST(DataParallel, UnclearedGradientsKeepAccumulating) {
  const Gradients serial = serial_gradients();
  run_ranks_as_threads(2, [&](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model);
    for (int step = 1; step <= 3; ++step) {
      loss_of(*model, input_of(context.rank(), 2)).backward();
      Gradients expected;
      for (const auto& [name, gradient] : serial)
        expected[name] = gradient.defined() ? gradient * step : gradient;
      expect_close(gradients_of(*model), expected, step * kSumOrderBound);
    }
  });
}

TEST(DataParallel, ZeroedAndDroppedGradientsGiveSameBits) {
  run_ranks_as_threads(2, [](Context& context) {
    auto dropped = model_without_norm();
    auto zeroed = model_without_norm();
    DistributedDataParallel first(context, dropped);
    DistributedDataParallel second(context, zeroed);
    for (int step = 0; step < 3; ++step) {
      first.zero_grad();
      zeroed->zero_grad(/*set_to_none=*/false);
      loss_of(*dropped, input_of(context.rank(), 2) + step).backward();
      loss_of(*zeroed, input_of(context.rank(), 2) + step).backward();
      expect_close(gradients_of(*zeroed), gradients_of(*dropped), 0);
    }
  });
}

TEST(DataParallel, StartsWithStateOfRankZero) {
  run_ranks_as_threads(3, [](Context& context) {
    auto model = std::make_shared<TwoLayers>();
    test::fill_parameters(*model, 1 + context.rank());
    {
      const at::NoGradGuard no_grad;
      for (auto& buffer : model->buffers()) buffer.fill_(context.rank() + 1);
    }
    const DistributedDataParallel ddp(context, model);
    TwoLayers expected;
    for (const auto& item : expected.named_parameters()) {
      EXPECT_TRUE(at::equal(model->named_parameters()[item.key()], item.value())) << item.key();
    }
    for (const auto& buffer : model->buffers()) {
      EXPECT_TRUE(at::equal(buffer, at::ones_like(buffer)));
    }
  });
}

TEST(DataParallel, BuffersFollowRankZeroAfterEveryReduction) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = std::make_shared<TwoLayers>();
    model->use_norm = true;
    DistributedDataParallel ddp(context, model);
    TwoLayers alone;
    alone.use_norm = true;
    loss_of(*model, input_of(context.rank(), 2)).backward();
    loss_of(alone, input_of(0, 2));
    for (const auto& item : alone.named_buffers()) {
      EXPECT_TRUE(at::equal(model->named_buffers()[item.key()], item.value())) << item.key();
    }
  });
}

TEST(DataParallel, UnusedParameterIsErrorWithName) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = model_without_norm();
    model->use_second = false;
    DistributedDataParallel ddp(context, model);
    EXPECT_THAT([&] { loss_of(*model, input_of(context.rank(), 2)).backward(); },
                testing::ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr("second.weight"), HasSubstr("second.bias"), HasSubstr("kFind"))));
  });
}

class UnusedModes : public testing::TestWithParam<UnusedParameters> {};

TEST_P(UnusedModes, PartlyUsedParameterGetsMean) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = model_without_norm();
    model->use_second = context.rank() == 0;
    DistributedDataParallel ddp(context, model, {.unused_parameters = GetParam()});
    TwoLayers alone;
    loss_of(alone, input_of(0, 2)).backward();
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      loss_of(*model, input_of(context.rank(), 2)).backward();
      EXPECT_LE((model->second->weight.grad() - alone.second->weight.grad() / 2).abs().max().item<double>(),
                kSumOrderBound);
    }
  });
}

TEST_P(UnusedModes, UnusedParameterKeepsItsGradient) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = model_without_norm();
    model->use_second = false;
    DistributedDataParallel ddp(context, model, {.unused_parameters = GetParam()});
    model->second->bias.mutable_grad() = at::ones({3});
    for (int step = 0; step < 3; ++step) {
      loss_of(*model, input_of(context.rank(), 2)).backward();
      EXPECT_FALSE(model->second->weight.grad().defined());
      EXPECT_TRUE(at::equal(model->second->bias.grad(), at::ones({3})));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, UnusedModes,
                         testing::Values(UnusedParameters::kFind, UnusedParameters::kStatic));

TEST(DataParallel, FindAllowsChangingUsage) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model, {.unused_parameters = UnusedParameters::kFind});
    for (int step = 0; step < 6; ++step) {
      ddp.zero_grad();
      const bool used[2] = {step % 2 == 0, step % 3 == 0};
      model->use_second = used[context.rank()];
      loss_of(*model, input_of(context.rank(), 2)).backward();
      EXPECT_EQ(model->second->weight.grad().defined(), used[0] || used[1]) << "step " << step;
    }
  });
}

TEST(DataParallel, DifferentModelsNameFirstDifference) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = std::make_shared<TwoLayers>(context.rank() == 0 ? 5 : 6);
    EXPECT_THAT([&] { DistributedDataParallel(context, model); },
                testing::ThrowsMessage<CommError>(
                    HasSubstr("parameter 'first.weight' is (5, 4) f32 on rank 0 and (6, 4) f32 on rank 1")));
  });
}

TEST(DataParallel, AModuleWithoutGradientsIsRejected) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = std::make_shared<TwoLayers>();
    for (auto& parameter : model->parameters()) parameter.set_requires_grad(false);
    EXPECT_THROW(DistributedDataParallel(context, model), InvalidArgument);
  });
}

class HalfHooks : public testing::TestWithParam<const char*> {};

TEST_P(HalfHooks, GradientsStayWithinFormatRounding) {
  const Gradients serial = serial_gradients();
  run_ranks_as_threads(2, [&](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model, {.hook = make_comm_hook(GetParam())});
    loss_of(*model, input_of(context.rank(), 2)).backward();
    // Two roundings to 8 (bf16) significant bits: one per rank and one of the sum.
    const auto got = gradients_of(*model);
    for (const auto& [name, gradient] : serial) {
      if (!gradient.defined()) continue;
      const double bound = gradient.abs().max().item<double>() * 2 / 256;
      EXPECT_LE((got.at(name) - gradient).abs().max().item<double>(), bound) << name;
      EXPECT_GT((got.at(name) - gradient).abs().max().item<double>(), 0) << name << " was not rounded at all";
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Formats, HalfHooks, testing::Values("bf16", "fp16"));

TEST(CommHookTable, UnknownNameSuggestsNearest) {
  EXPECT_THAT([] { make_comm_hook("bf61"); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("did you mean 'bf16'")));
}

TEST(DataParallel, ModelWorksWithoutItsWrapper) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = model_without_norm();
    { const DistributedDataParallel ddp(context, model); }
    TwoLayers alone;
    loss_of(*model, input_of(context.rank(), 2)).backward();
    loss_of(alone, input_of(context.rank(), 2)).backward();
    EXPECT_TRUE(at::equal(model->first->weight.grad(), alone.first->weight.grad()));
  });
}

// Each rank multiplies its loss by rank + 1, so that the local gradient differs from the mean.
TEST(DistributedDataParallel, FinishDeliversDeferredReductionOnRequest) {
  const auto gradients_with = [](ReductionEnd end) {
    Gradients gradients;
    run_ranks_as_threads(2, [&](Context& context) {
      const auto model = model_without_norm();
      DistributedDataParallel ddp(context, model, {.end = end});
      for (int step = 0; step < 2; ++step) {
        ddp.zero_grad();
        (loss_of(*model, input_of(context.rank(), 2)) * (context.rank() + 1)).backward();
        EXPECT_EQ(ddp.statistics().reductions,
                  static_cast<std::uint64_t>(end == ReductionEnd::kOnRequest ? step : step + 1));
        ddp.finish_reduction();
        ddp.finish_reduction();  // nothing more to do
        EXPECT_EQ(ddp.statistics().reductions, static_cast<std::uint64_t>(step + 1));
      }
      if (context.is_main()) gradients = gradients_of(*model);
    });
    return gradients;
  };
  expect_close(gradients_with(ReductionEnd::kOnRequest), gradients_with(ReductionEnd::kWithBackward), 0);
}

// The forward does not use the norm. Its gradient never comes, and no later bucket starts.
TEST(DistributedDataParallel, UnreachedParametersAreReducedOnRequest) {
  run_ranks_as_threads(2, [](Context& context) {
    const auto model = std::make_shared<TwoLayers>();
    const auto hook = std::make_shared<test::CountingHook>();
    DistributedDataParallel ddp(context, model,
                                {.bucket_mib = 1e-6,
                                 .first_bucket_mib = 1e-6,
                                 .unused_parameters = UnusedParameters::kFind,
                                 .end = ReductionEnd::kOnRequest,
                                 .hook = hook});
    const auto all = static_cast<int>(ddp.statistics().bucket_bytes.size());
    loss_of(*model, input_of(context.rank(), 2)).backward();
    EXPECT_GT(hook->started, 0) << "nothing is reduced beside backward";
    EXPECT_LT(hook->started, all);
    ddp.start_reduction();
    EXPECT_EQ(hook->started, all);
    EXPECT_EQ(hook->waited, 0);
    ddp.start_reduction();  // nothing more to do
    ddp.finish_reduction();
    EXPECT_EQ(hook->started, all);
    EXPECT_EQ(hook->waited, all);
    expect_close(gradients_of(*model), serial_gradients(), 1e-6);
  });
}

TEST(DistributedDataParallel, RankWithoutSampleJoinsOnRequest) {
  Gradients gradients, expected;
  run_ranks_as_threads(2, [&](Context& context) {
    const auto model = model_without_norm();
    DistributedDataParallel ddp(context, model,
                                {.scale = ReduceScale::kSum, .end = ReductionEnd::kOnRequest});
    if (context.is_main()) {
      loss_of(*model, input_of(0, 2)).backward();
      expected = gradients_of(*model);
    }
    ddp.start_reduction();
    ddp.finish_reduction();
    if (!context.is_main()) gradients = gradients_of(*model);
  });
  expect_close(gradients, expected, 0);
}

}  // namespace
}  // namespace trireme::parallel
