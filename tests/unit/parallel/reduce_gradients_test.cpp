// Gradients of torch::autograd::grad(), reduced on request.
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "tests/unit/parallel/data_parallel_case.h"

namespace trireme::parallel {
namespace {

using testing::ThrowsMessage;
using torch::autograd::grad;

at::Tensor part_of_twelve(int rank, int size) {
  return numbers({12, 4}, 7).chunk(size)[static_cast<std::size_t>(rank)];
}

std::vector<at::Tensor> gradients_on(TwoLayers& model, const at::Tensor& x) {
  return grad({model.forward(x).square().mean()}, model.parameters(), {}, {}, false, /*allow_unused=*/true);
}

class ReduceGradientsOver : public testing::TestWithParam<std::string> {};

TEST_P(ReduceGradientsOver, MatchesOneRankAndKeepsGrad) {
  TwoLayers alone;
  const auto expected = gradients_on(alone, numbers({12, 4}, 7));
  run_ranks_as_threads(3,
                       [&](Context& context) {
                         const auto model = model_without_norm();
                         for (auto& parameter : model->parameters()) parameter.set_requires_grad(true);
                         DistributedDataParallel ddp(context, model);
                         auto gradients = gradients_on(*model, part_of_twelve(context.rank(), 3));
                         ddp.reduce_gradients(gradients, model->parameters());
                         ASSERT_EQ(gradients.size(), expected.size());
                         for (std::size_t i = 0; i < expected.size(); ++i) {
                           ASSERT_EQ(gradients[i].defined(), expected[i].defined())
                               << i << ": the norm's are unused";
                           EXPECT_FALSE(model->parameters()[i].grad().defined());
                           if (!gradients[i].defined()) continue;
                           EXPECT_LE((gradients[i] - expected[i]).abs().max().item<double>(), 2e-7) << i;
                         }
                       },
                       {.backend = GetParam(), .timeout_s = 20});
}

INSTANTIATE_TEST_SUITE_P(Backends, ReduceGradientsOver, testing::Values("threads", "gloo", "shm"),
                         [](const auto& row) { return row.param; });

TEST(ReduceGradients, LoneGradientArrivesScaledOnAll) {
  for (const auto& [scale, expected] :
       {std::pair(ReduceScale::kMean, 1.5), std::pair(ReduceScale::kSum, 3.0)}) {
    run_ranks_as_threads(
        2,
        [scale = scale, expected = expected](Context& context) {
          const auto model = model_without_norm();
          DistributedDataParallel ddp(context, model, {.scale = scale});
          const std::vector<at::Tensor> parameters{numbers({2, 3}, 1), numbers({5}, 1).to(at::kDouble),
                                                   numbers({}, 1)};
          std::vector<at::Tensor> gradients(3);
          if (context.rank() == 1) gradients[1] = at::full({5}, 3, at::kDouble);
          gradients[2] = at::full({}, context.rank() == 0 ? 0. : 3.);
          ddp.reduce_gradients(gradients, parameters);
          EXPECT_FALSE(gradients[0].defined());
          EXPECT_TRUE(at::equal(gradients[1], at::full({5}, expected, at::kDouble)));
          EXPECT_TRUE(at::equal(gradients[2], at::full({}, expected)));
        },
        kDeadline);
  }
}

TEST(ReduceGradients, IsInStepWithBackwardPasses) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        const auto model = model_without_norm();
        DistributedDataParallel ddp(context, model, {.bucket_mib = 1e-5, .first_bucket_mib = 1e-5});
        const auto learning = model->first->parameters();
        for (int step = 0; step < 3; ++step) {
          auto gradients = grad({loss_of_rank(*model, context.rank())}, learning);
          ddp.reduce_gradients(gradients, learning);
          ddp.zero_grad();
          loss_of_rank(*model, context.rank()).backward();
          for (std::size_t i = 0; i < learning.size(); ++i)
            EXPECT_LE((gradients[i] - learning[i].grad()).abs().max().item<double>(), 2e-7) << step;
        }
      },
      kDeadline);
}

TEST(ReduceGradients, RejectsMismatchedGradients) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        const auto model = model_without_norm();
        DistributedDataParallel ddp(context, model);
        const auto weight = model->first->weight;
        const auto reduces = [&](std::vector<at::Tensor> gradients) {
          return [&ddp, &weight, gradients = std::move(gradients)] {
            std::vector<at::Tensor> mine = gradients;
            ddp.reduce_gradients(mine, {weight});
          };
        };
        EXPECT_THAT(reduces({}), ThrowsMessage<InvalidArgument>(HasSubstr("0 gradients and 1 parameters")));
        EXPECT_THAT(reduces({numbers({3}, 1)}),
                    ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("[3]"), HasSubstr("[5, 4]"))));
        EXPECT_THAT(reduces(grad({loss_of_rank(*model, 0)}, {weight}, {}, true, /*create_graph=*/true)),
                    ThrowsMessage<InvalidArgument>(HasSubstr("create_graph")));
        DistributedDataParallel::Join join(ddp);
        EXPECT_THAT(
            reduces({numbers({5, 4}, 1)}),
            ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("Join"), HasSubstr("same number of batches"))));
      },
      kDeadline);
}

}  // namespace
}  // namespace trireme::parallel
