// Batch norms whose running statistics are those of the whole batch, over all its micro-batches.
#include "trireme/parallel/data/deferred_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>

#include "tests/unit/parallel/small_models.h"
#include "trireme/base/error.h"
#include "trireme/model/checkpointed.h"
#include "trireme/model/layer_cuts.h"
#include "trireme/parallel/pipeline/pipe.h"

namespace trireme::parallel {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

at::Tensor deferred_input(std::int64_t samples) {
  return at::arange(samples * 3 * 4, at::kDouble).remainder(7).square().view({samples, 3, 4}) + 1000;
}

torch::nn::BatchNormOptions deferred_options() { return torch::nn::BatchNormOptions(3).momentum(0.3); }

template <class Norm, class Other>
void expect_same_statistics(const Norm& found, const Other& expected) {
  EXPECT_TRUE(at::allclose(found.running_mean, expected.running_mean, 1e-12, 0)) << found.running_mean;
  EXPECT_TRUE(at::allclose(found.running_var, expected.running_var, 1e-9, 0)) << found.running_var;
  EXPECT_EQ(found.num_batches_tracked.template item<std::int64_t>(),
            expected.num_batches_tracked.template item<std::int64_t>());
}

TEST(DeferredBatchNorm, StatisticsAreThoseOfWholeBatch) {
  for (const bool has_momentum : {true, false}) {
    auto options = deferred_options();
    if (!has_momentum) options.momentum(std::nullopt);
    for (const std::int64_t chunks : {1, 2, 3, 5}) {
      torch::nn::BatchNorm1d whole(options);
      DeferredBatchNorm norm(options, chunks);
      whole->to(at::kDouble);
      norm->to(at::kDouble);
      for (const std::int64_t samples : {10, 11}) {
        const at::Tensor input = deferred_input(samples);
        whole(input);
        for (const at::Tensor& chunk : input.tensor_split(chunks)) norm(chunk);
      }
      expect_same_statistics(*norm, *whole);
    }
  }
}

TEST(DeferredBatchNorm, NormalizesMicroBatchByItsStatistics) {
  torch::nn::BatchNorm1d plain(deferred_options());
  DeferredBatchNorm norm(deferred_options(), 2);
  for (const at::Tensor& chunk : deferred_input(8).to(at::kFloat).tensor_split(2)) {
    at::Tensor input = chunk.clone().requires_grad_(), same = chunk.clone().requires_grad_();
    const at::Tensor output = norm(input), expected = plain(same);
    EXPECT_TRUE(at::equal(output, expected));
    output.square().sum().backward();
    expected.square().sum().backward();
    EXPECT_TRUE(at::equal(input.grad(), same.grad()));
  }
  EXPECT_TRUE(at::equal(norm->weight.grad(), plain->weight.grad()));
  norm->eval();
  plain->eval();
  plain->running_mean.copy_(norm->running_mean);
  plain->running_var.copy_(norm->running_var);
  EXPECT_TRUE(at::equal(norm(deferred_input(2).to(at::kFloat)), plain(deferred_input(2).to(at::kFloat))));
}

TEST(DeferredBatchNorm, ARecomputedForwardDoesNotCountAgain) {
  torch::nn::BatchNorm1d whole(deferred_options());
  torch::nn::Sequential chain(DeferredBatchNorm(deferred_options(), 2), torch::nn::Tanh());
  const auto layer = model::checkpointed(model::layers_of(chain).front());
  const at::Tensor input = deferred_input(6).to(at::kFloat);
  for (int step = 0; step < 2; ++step) {
    whole(input);
    for (const at::Tensor& chunk : input.tensor_split(2)) {
      at::Tensor values = chunk.clone().requires_grad_();
      layer.forward(Fields(values)).at(0).sum().backward();
    }
  }
  const auto norm = std::dynamic_pointer_cast<DeferredBatchNormImpl>(chain->ptr(0));
  EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 2);
  EXPECT_TRUE(at::allclose(norm->running_mean, whole->running_mean));
  EXPECT_TRUE(at::allclose(norm->running_var, whole->running_var, 1e-3));
}

TEST(DeferredBatchNorm, UnfinishedBatchDoesNotCount) {
  torch::nn::BatchNorm1d whole(deferred_options());
  DeferredBatchNorm norm(deferred_options(), 4);
  whole->to(at::kDouble);
  norm->to(at::kDouble);
  norm(deferred_input(3));  // then an exception ends the loop
  norm->set_chunks(2);
  whole(deferred_input(8));
  for (const at::Tensor& chunk : deferred_input(8).tensor_split(2)) norm(chunk);
  expect_same_statistics(*norm, *whole);
}

TEST(DeferredBatchNorm, CloneBeginsItsOwnBatch) {
  torch::nn::BatchNorm1d whole(deferred_options());
  DeferredBatchNorm norm(deferred_options(), 2);
  whole->to(at::kDouble);
  norm->to(at::kDouble);
  norm(deferred_input(3));  // the first of two micro-batches
  const auto copy = std::dynamic_pointer_cast<DeferredBatchNormImpl>(norm->clone());
  whole(deferred_input(8));
  for (const at::Tensor& chunk : deferred_input(8).tensor_split(2)) copy->forward(chunk);
  expect_same_statistics(*copy, *whole);
  EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 0);
}

TEST(DeferredBatchNorm, ReplacesBatchNormsWithTheirTensors) {
  torch::nn::Sequential chain(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3), torch::nn::BatchNorm1d(3));
  const auto before = chain->named_parameters();
  EXPECT_EQ(convert_deferred_batchnorm(*chain, 4), 2);
  EXPECT_EQ(convert_deferred_batchnorm(*chain, 2), 2) << "those that are there get the new number";
  const auto after = chain->named_parameters();
  ASSERT_EQ(after.keys(), before.keys());
  for (const auto& item : before) EXPECT_TRUE(after[item.key()].is_same(item.value())) << item.key();
  EXPECT_NE(chain->ptr(1)->as<DeferredBatchNormImpl>(), nullptr);
  torch::nn::BatchNorm1d alone(3);
  EXPECT_THAT([&] { convert_deferred_batchnorm(*alone, 2); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("convert_deferred_batchnorm cannot replace"),
                                                   HasSubstr("trireme::DeferredBatchNorm"))));
  EXPECT_THAT([&] { convert_deferred_batchnorm(*chain, 0); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected at least 1")));
  EXPECT_THAT(
      [&] {
        DeferredBatchNorm(deferred_options(), 2)->forward(at::ones({1, 3}));
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("use fewer micro-batches")));
}

TEST(DeferredBatchNorm, PipeHasBatchStatisticsOnAnyRanks) {
  const at::Tensor input = test::numbers({8, 4}, 1), target = test::numbers({8, 2}, 2);
  torch::nn::BatchNorm1d whole(4);
  for (int step = 0; step < 2; ++step) whole(input);
  for (const int ranks : {1, 2}) {
    for (const bool recompute : {false, true}) {
      comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
        torch::nn::Sequential chain(torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 3),
                                    torch::nn::Linear(3, 2));
        Pipe pipe(context, chain, {.chunks = 4, .recompute = recompute, .deferred_batch_norm = true});
        for (int step = 0; step < 2; ++step) pipe.step(input, target, test::mean_square);
        if (context.rank() > 0) return;
        const auto norm = std::dynamic_pointer_cast<DeferredBatchNormImpl>(chain->ptr(0));
        EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 2);
        EXPECT_TRUE(at::allclose(norm->running_mean, whole->running_mean)) << ranks << recompute;
        EXPECT_TRUE(at::allclose(norm->running_var, whole->running_var)) << ranks << recompute;
      });
    }
  }
}

}  // namespace
}  // namespace trireme::parallel
