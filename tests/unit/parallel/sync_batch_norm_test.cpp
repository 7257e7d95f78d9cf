// Batch norms over all ranks equal torch::nn::BatchNorm of one rank on the global batch.
#include "trireme/parallel/data/sync_batch_norm.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/optim/sgd.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/unit/parallel/data_parallel_case.h"

namespace trireme::parallel {
namespace {

namespace nn = torch::nn;
using test::numbers_f64;

constexpr std::int64_t kNormChannels = 3;
using RowsOfRanks = std::vector<std::int64_t>;  ///< samples of each rank

/// The results of a norm on a batch, and its buffers afterwards.
struct NormOutcome {
  at::Tensor output, of_input, of_weight, of_bias, mean, variance, batches;
};

template <class Norm>
NormOutcome norm_outcome(Norm& norm, const at::Tensor& x, const at::Tensor& factors) {
  at::Tensor input = x.detach().clone().requires_grad_();
  const at::Tensor output = norm.forward(input);
  (output * factors).sum().backward();
  return {output.detach(),   input.grad(),     norm.weight.grad(),      norm.bias.grad(),
          norm.running_mean, norm.running_var, norm.num_batches_tracked};
}

/// The norm with weights other than the initial ones.
template <class Norm>
std::shared_ptr<Norm> filled_norm(std::shared_ptr<Norm> norm, at::ScalarType dtype = at::kDouble) {
  test::fill_parameters(*norm);
  norm->to(dtype);
  return norm;
}

at::Tensor rows_of_rank(const at::Tensor& all, const RowsOfRanks& rows, int rank) {
  const std::int64_t begin = std::accumulate(rows.begin(), rows.begin() + rank, std::int64_t{0});
  return all.narrow(0, begin, rows[static_cast<std::size_t>(rank)]);
}

double norm_difference(const at::Tensor& one, const at::Tensor& other) {
  EXPECT_EQ(one.sizes(), other.sizes());
  return one.numel() == 0 ? 0 : (one - other).abs().max().item<double>();
}

// f64 sums of a few hundred terms, added in another order.
constexpr double kNormBound = 1e-12;

void expect_part(const NormOutcome& got, const NormOutcome& expected, const RowsOfRanks& rows,
                 Context& context) {
  EXPECT_LE(norm_difference(got.output, rows_of_rank(expected.output, rows, context.rank())), kNormBound);
  EXPECT_LE(norm_difference(got.of_input, rows_of_rank(expected.of_input, rows, context.rank())), kNormBound);
  at::Tensor of_weight = got.of_weight.clone(), of_bias = got.of_bias.clone();
  context.world().all_reduce(of_weight);
  context.world().all_reduce(of_bias);
  EXPECT_LE(norm_difference(of_weight, expected.of_weight), kNormBound);
  EXPECT_LE(norm_difference(of_bias, expected.of_bias), kNormBound);
  EXPECT_LE(norm_difference(got.mean, expected.mean), kNormBound);
  EXPECT_LE(norm_difference(got.variance, expected.variance), kNormBound);
  EXPECT_EQ(got.batches.item<std::int64_t>(), expected.batches.item<std::int64_t>());
}

template <class Impl>
void expect_that_of_one_rank(const std::string& backend, const RowsOfRanks& rows, const RowsOfRanks& places,
                             const nn::BatchNormOptions& options) {
  RowsOfRanks sizes{std::accumulate(rows.begin(), rows.end(), std::int64_t{0}), kNormChannels};
  sizes.insert(sizes.end(), places.begin(), places.end());
  const auto input_of = [&](int step) { return numbers_f64(sizes, 3 + 20 * step) * (step + 2) + step; };
  const at::Tensor factors = numbers_f64(sizes, 5);
  const auto alone = filled_norm(std::make_shared<Impl>(options));
  std::vector<NormOutcome> expected;
  for (int step = 0; step < 2; ++step) {
    expected.push_back(norm_outcome(*alone, input_of(step), factors));
    for (at::Tensor* each : {&expected[step].of_weight, &expected[step].of_bias, &expected[step].mean,
                             &expected[step].variance, &expected[step].batches})
      *each = each->clone();
  }
  run_ranks_as_threads(
      static_cast<int>(rows.size()),
      [&](Context& context) {
        const auto norm = filled_norm(std::make_shared<SyncBatchNormImpl>(options, context.world()));
        for (int step = 0; step < 2; ++step) {
          const NormOutcome got = norm_outcome(*norm, rows_of_rank(input_of(step), rows, context.rank()),
                                               rows_of_rank(factors, rows, context.rank()));
          expect_part(got, expected[static_cast<std::size_t>(step)], rows, context);
        }
      },
      {.backend = backend, .timeout_s = 20});
}

class SyncBatchNormOver : public testing::TestWithParam<std::string> {};

TEST_P(SyncBatchNormOver, MatchesOneRankInEveryShape) {
  const nn::BatchNormOptions options(kNormChannels);
  expect_that_of_one_rank<nn::BatchNorm1dImpl>(GetParam(), {4, 4}, {}, options);
  expect_that_of_one_rank<nn::BatchNorm1dImpl>(GetParam(), {4, 4}, {5}, options);
  expect_that_of_one_rank<nn::BatchNorm2dImpl>(GetParam(), {2, 2}, {4, 5}, options);
  expect_that_of_one_rank<nn::BatchNorm3dImpl>(GetParam(), {2, 2}, {2, 4, 3}, options);
}

TEST_P(SyncBatchNormOver, MatchesOneRankWithUnequalBatches) {
  const nn::BatchNormOptions options(kNormChannels);
  expect_that_of_one_rank<nn::BatchNorm2dImpl>(GetParam(), {5, 1, 2}, {4, 3}, options);
  expect_that_of_one_rank<nn::BatchNorm1dImpl>(GetParam(), {1, 0, 6}, {}, options);
  expect_that_of_one_rank<nn::BatchNorm2dImpl>(GetParam(), {0, 3}, {4, 3}, options);
}

INSTANTIATE_TEST_SUITE_P(Backends, SyncBatchNormOver, testing::Values("threads", "gloo", "shm"),
                         [](const auto& row) { return row.param; });

TEST(SyncBatchNorm, StatisticsWithoutMomentumAreMeans) {
  expect_that_of_one_rank<nn::BatchNorm1dImpl>(
      "threads", {3, 2}, {}, nn::BatchNormOptions(kNormChannels).momentum(std::nullopt).eps(1e-3));
}

TEST(SyncBatchNorm, MatchesOneRankWithoutWeightsOrStatistics) {
  const auto options = nn::BatchNormOptions(kNormChannels).affine(false).track_running_stats(false);
  const at::Tensor all = numbers_f64({6, kNormChannels, 2}, 1), factors = numbers_f64(all.sizes(), 9);
  const auto outputs = [&](auto& norm, const at::Tensor& x, const at::Tensor& factor) {
    at::Tensor input = x.detach().clone().requires_grad_();
    const at::Tensor output = norm.forward(input);
    (output * factor).sum().backward();
    return std::pair(output.detach(), input.grad());
  };
  nn::BatchNorm1dImpl alone(options);
  const auto [output, gradient] = outputs(alone, all, factors);
  run_ranks_as_threads(2, [&, output = output, gradient = gradient](Context& context) {
    const RowsOfRanks rows{4, 2};
    SyncBatchNormImpl norm(options, context.world());
    EXPECT_TRUE(norm.parameters().empty());
    EXPECT_TRUE(norm.buffers().empty());
    const auto [mine, of_mine] =
        outputs(norm, rows_of_rank(all, rows, context.rank()), rows_of_rank(factors, rows, context.rank()));
    EXPECT_LE(norm_difference(mine, rows_of_rank(output, rows, context.rank())), kNormBound);
    EXPECT_LE(norm_difference(of_mine, rows_of_rank(gradient, rows, context.rank())), kNormBound);
  });
}

/// The error of an f32 norm compared with an f64 norm, for a mean that is a thousand times the deviation.
template <class Norm>
double norm_error_of(Norm& norm, const at::Tensor& input, const at::Tensor& exact) {
  return norm_difference(norm.forward(input.to(at::kFloat)).to(at::kDouble), exact);
}

TEST(SyncBatchNorm, IsExactWithLargeMean) {
  const at::Tensor all = (numbers({64, kNormChannels, 8, 8}, 1) + 1000).to(at::kDouble);
  nn::BatchNorm2dImpl exact(kNormChannels), alone(kNormChannels);
  exact.to(at::kDouble);
  const at::Tensor expected = exact.forward(all).detach();
  const double bound = 2 * norm_error_of(alone, all, expected);
  run_ranks_as_threads(2, [&](Context& context) {
    const RowsOfRanks rows{40, 24};
    SyncBatchNormImpl norm(kNormChannels, context.world());
    EXPECT_LE(norm_error_of(norm, rows_of_rank(all, rows, context.rank()),
                            rows_of_rank(expected, rows, context.rank())),
              bound);
  });
}

class SyncBatchNormReduced : public testing::TestWithParam<at::ScalarType> {};

TEST_P(SyncBatchNormReduced, HasF32StatisticsForEitherWeightType) {
  const at::Tensor all = numbers({64, kNormChannels, 8, 8}, 1).to(GetParam());
  nn::BatchNorm2dImpl alone(kNormChannels);
  const NormOutcome expected = norm_outcome(alone, all.to(at::kFloat), numbers(all.sizes(), 5));
  const double unit = GetParam() == at::kHalf ? 1. / 1024 : 1. / 128;
  for (const at::ScalarType of_weights : {at::kFloat, GetParam()}) {
    run_ranks_as_threads(2, [&](Context& context) {
      const RowsOfRanks rows{40, 24};
      SyncBatchNormImpl norm(kNormChannels, context.world());
      norm.to(of_weights);
      const NormOutcome got = norm_outcome(norm, rows_of_rank(all, rows, context.rank()),
                                           rows_of_rank(numbers(all.sizes(), 5), rows, context.rank()));
      EXPECT_EQ(got.output.scalar_type(), GetParam());
      EXPECT_EQ(got.of_input.scalar_type(), GetParam());
      EXPECT_EQ(got.of_weight.scalar_type(), of_weights);
      // Values of size 2, rounded once.
      EXPECT_LE(
          norm_difference(got.output.to(at::kFloat), rows_of_rank(expected.output, rows, context.rank())),
          2 * unit);
      EXPECT_LE(
          norm_difference(got.of_input.to(at::kFloat), rows_of_rank(expected.of_input, rows, context.rank())),
          4 * unit);
      EXPECT_LE(norm_difference(got.variance.to(at::kFloat), expected.variance),
                of_weights == at::kFloat ? 1e-5 : unit);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SyncBatchNormReduced, testing::Values(at::kBFloat16, at::kHalf));

TEST(SyncBatchNorm, KeepsChannelsLast) {
  const at::Tensor all = numbers_f64({4, kNormChannels, 5, 6}, 1);
  const auto alone = filled_norm(std::make_shared<nn::BatchNorm2dImpl>(kNormChannels));
  const NormOutcome expected = norm_outcome(*alone, all, numbers_f64(all.sizes(), 5));
  run_ranks_as_threads(2, [&](Context& context) {
    const auto norm = filled_norm(std::make_shared<SyncBatchNormImpl>(kNormChannels, context.world()));
    const RowsOfRanks rows{3, 1};
    const at::Tensor mine =
        rows_of_rank(all, rows, context.rank()).contiguous(at::MemoryFormat::ChannelsLast);
    const NormOutcome got =
        norm_outcome(*norm, mine, rows_of_rank(numbers_f64(all.sizes(), 5), rows, context.rank()));
    EXPECT_TRUE(got.output.is_contiguous(at::MemoryFormat::ChannelsLast));
    expect_part(got, expected, rows, context);
  });
}

// Rank 1 does nothing, so rank 0 would wait for it in a collective.
TEST(SyncBatchNorm, EvaluatesWithRunningStatisticsAndNoCommunication) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        if (context.rank() == 1) return;
        const at::Tensor input = numbers({1, kNormChannels}, 1);
        SyncBatchNormImpl norm(kNormChannels, context.world());
        nn::BatchNorm1dImpl alone(kNormChannels);
        for (at::Tensor* each : {&norm.running_mean, &alone.running_mean}) each->fill_(0.25);
        norm.eval();
        alone.eval();
        EXPECT_TRUE(at::equal(norm.forward(input), alone.forward(input)));
        EXPECT_EQ(norm.num_batches_tracked.item<std::int64_t>(), 0);
      },
      kDeadline);
}

TEST(SyncBatchNorm, IsTorchLayerWithoutGroup) {
  const at::Tensor input = numbers({6, kNormChannels}, 1);
  SyncBatchNormImpl norm(nn::BatchNormOptions(kNormChannels).momentum(0.3));
  nn::BatchNorm1dImpl alone(nn::BatchNormOptions(kNormChannels).momentum(0.3));
  EXPECT_TRUE(at::equal(norm.forward(input), alone.forward(input)));
  EXPECT_TRUE(at::equal(norm.running_var, alone.running_var));
  EXPECT_EQ(norm.num_batches_tracked.item<std::int64_t>(), 1);
}

std::string error_of_forward(SyncBatchNormImpl& norm, const at::Tensor& input) {
  try {
    norm.forward(input);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(SyncBatchNorm, WorksAfterForwardFailsOnAllRanks) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        SyncBatchNormImpl norm(kNormChannels, context.world());
        EXPECT_THAT(error_of_forward(norm, numbers({6, 4}, 1)),
                    AllOf(HasSubstr("3 channels"), HasSubstr("[6, 4]"), HasSubstr("(N, 3, *)")));
        // One value per channel on rank 0, none on rank 1.
        EXPECT_THAT(error_of_forward(norm, numbers({1 - context.rank(), kNormChannels}, 1)),
                    AllOf(HasSubstr("found 1 over the 2 ranks"), HasSubstr("more than one value")));
        EXPECT_EQ(norm.num_batches_tracked.item<std::int64_t>(), 0);
        EXPECT_TRUE(at::equal(norm.running_var, at::ones({kNormChannels})));
        const at::Tensor all = numbers({8, kNormChannels}, 1);
        nn::BatchNorm1dImpl alone(kNormChannels);
        const at::Tensor mine = norm.forward(all.narrow(0, 4 * context.rank(), 4));
        EXPECT_LE(norm_difference(mine, alone.forward(all).narrow(0, 4 * context.rank(), 4)), 1e-6);
      },
      kDeadline);
}

TEST(SyncBatchNorm, IsRejectedInJoinWithoutForward) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        const auto model = model_without_norm();
        DistributedDataParallel ddp(context, model);
        SyncBatchNormImpl norm(kNormChannels, context.world());
        DistributedDataParallel::Join join(ddp);
        EXPECT_THAT(error_of_forward(norm, numbers({4, kNormChannels}, 1)),
                    AllOf(HasSubstr("Join"), HasSubstr("same number of batches")));
      },
      kDeadline);
}

TEST(SyncBatchNorm, RejectsSecondDerivatives) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        SyncBatchNormImpl norm(kNormChannels, context.world());
        const at::Tensor input = numbers({4, kNormChannels}, context.rank()).requires_grad_();
        const at::Tensor sum = norm.forward(input).square().sum();
        EXPECT_THAT([&] { torch::autograd::grad({sum}, {input}, {}, true, /*create_graph=*/true); },
                    testing::ThrowsMessage<InvalidArgument>(HasSubstr("create_graph")));
      },
      kDeadline);
}

/// With an extra branch that only some ranks use. In backward it comes after the norm.
struct BranchedNet : nn::Module {
  BranchedNet() {
    test::fill_parameters(*this);
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x, bool with_branch) {
    at::Tensor h = body->forward(x).relu();
    if (with_branch) h = h + branch->forward(h);
    return head->forward(h);
  }
  nn::Sequential body =
      register_module("body", nn::Sequential(nn::Conv2d(nn::Conv2dOptions(2, kNormChannels, 3).bias(false)),
                                             nn::BatchNorm2d(kNormChannels)));
  nn::Conv2d branch = register_module("branch", nn::Conv2d(kNormChannels, kNormChannels, 1));
  nn::Conv2d head = register_module("head", nn::Conv2d(kNormChannels, 1, 3));
};

/// Ten steps on the ranks' parts of the batch. The branch uses the first rows of each batch.
constexpr std::int64_t kNetBatch = 6, kNetBranch = 2;

at::Tensor loss_of_net(BranchedNet& net, const RowsOfRanks& rows, int step, int rank) {
  const at::Tensor x = numbers_f64({kNetBatch, 2, 6, 6}, 50 * step);
  return net.forward(rows_of_rank(x, rows, rank), rank == 0).square().sum() / (4 * kNetBatch);
}

void train_net(BranchedNet& net, const std::function<void(int step)>& backward) {
  torch::optim::SGD sgd(net.parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
  for (int step = 0; step < 10; ++step) {
    sgd.zero_grad();
    backward(step);
    sgd.step();
  }
}

class SyncBatchNormTraining : public testing::TestWithParam<std::string> {};

// Only rank 0 uses the branch. There its bucket starts before the reduction of the norm, and on rank 1 after
// it.
TEST_P(SyncBatchNormTraining, TenStepsMatchOneRank) {
  BranchedNet alone;
  train_net(alone, [&](int step) {
    const at::Tensor x = numbers_f64({kNetBatch, 2, 6, 6}, 50 * step), h = alone.body->forward(x).relu();
    const at::Tensor first = h.narrow(0, 0, kNetBranch);
    const at::Tensor all =
        at::cat({first + alone.branch->forward(first), h.narrow(0, kNetBranch, kNetBatch - kNetBranch)});
    (alone.head->forward(all).square().sum() / (4 * kNetBatch)).backward();
  });
  run_ranks_as_threads(
      2,
      [&](Context& context) {
        const auto net = std::make_shared<BranchedNet>();
        EXPECT_EQ(convert_sync_batchnorm(*net, context), 1);
        DistributedDataParallel ddp(context, net,
                                    {.bucket_mib = 1e-6,
                                     .first_bucket_mib = 1e-6,
                                     .unused_parameters = UnusedParameters::kFind,
                                     .scale = ReduceScale::kSum});
        train_net(*net, [&](int step) {
          loss_of_net(*net, {kNetBranch, kNetBatch - kNetBranch}, step, context.rank()).backward();
        });
        for (const auto& item : net->named_parameters())
          EXPECT_LE(norm_difference(item.value(), alone.named_parameters()[item.key()]), 1e-9) << item.key();
        for (const auto& item : net->named_buffers())
          EXPECT_LE(norm_difference(item.value(), alone.named_buffers()[item.key()]), 1e-9) << item.key();
      },
      {.backend = GetParam(), .timeout_s = 20});
}

INSTANTIATE_TEST_SUITE_P(Backends, SyncBatchNormTraining, testing::Values("threads", "gloo", "shm"),
                         [](const auto& row) { return row.param; });

}  // namespace
}  // namespace trireme::parallel
