#include "trireme/parallel/pipeline/internal/tied_parameters.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "trireme/comm/context.h"

namespace trireme::parallel {
namespace {

/// Three layers. The first and the last hold "table", and each rank has a copy with another value. The middle
/// layer has its own parameter.
struct Chain {
  explicit Chain(int rank)
      : table(at::full({2}, 10.0 + rank).requires_grad_(true)),
        own(at::full({2}, 20.0 + rank).requires_grad_(true)) {
    layers = {{.name = "first", .forward = nullptr, .parameters = {{"table", table}}},
              {.name = "between", .forward = nullptr, .parameters = {{"own", own}}},
              {.name = "last", .forward = nullptr, .parameters = {{"table", table}}}};
  }
  at::Tensor table, own;
  std::vector<model::Layer> layers;
};

using Stages = std::vector<Pipeline::StageLayers>;
const Stages kThreeRanks = {{.first = 0, .last = 1, .ranks = {0}},
                            {.first = 1, .last = 2, .ranks = {1}},
                            {.first = 2, .last = 3, .ranks = {2}}};

float value_of(const at::Tensor& tensor) { return tensor.detach()[0].item<float>(); }

TEST(TiedParameters, AreThoseThatSeveralRanksHold) {
  comm::run_ranks_as_threads(1, [](comm::Context& context) {
    const Chain chain(0);
    const TiedParameters tied(context.world(), chain.layers, kThreeRanks);
    EXPECT_TRUE(tied.any());
    EXPECT_TRUE(tied.across_stages());
    const TiedParameters whole(context.world(), chain.layers, {{.first = 0, .last = 3, .ranks = {0}}});
    EXPECT_FALSE(whole.any()) << "one rank holds everything";
    EXPECT_FALSE(whole.across_stages());
    const TiedParameters replicated(context.world(), chain.layers,
                                    {{.first = 0, .last = 3, .ranks = {0, 1}}});
    EXPECT_TRUE(replicated.any());
    EXPECT_FALSE(replicated.across_stages()) << "a stage with replicas shares with no other stage";
  });
}

TEST(TiedParameters, BeginWithValueOfFirstHolder) {
  comm::run_ranks_as_threads(3, [](comm::Context& context) {
    const Chain chain(context.rank());
    TiedParameters tied(context.world(), chain.layers, kThreeRanks);
    tied.make_equal();
    EXPECT_EQ(value_of(chain.table), context.rank() == 1 ? 11 : 10) << "rank 1 does not hold it";
    EXPECT_EQ(value_of(chain.own), 20 + context.rank());
  });
}

TEST(TiedParameters, AddHolderGradientsToEarlierOnes) {
  comm::run_ranks_as_threads(3, [](comm::Context& context) {
    const Chain chain(context.rank());
    TiedParameters tied(context.world(), chain.layers, kThreeRanks);
    for (int step = 1; step <= 2; ++step) {
      tied.set_aside();
      EXPECT_FALSE(context.rank() != 1 && chain.table.grad().defined()) << "gradients of the step alone";
      // Rank 0 does not use the table in the first step, so its gradient counts as zeros.
      if (step == 2 || context.rank() == 2) (chain.table * (1 + context.rank())).sum().backward();
      tied.add_gradients();
      if (context.rank() == 1) continue;
      EXPECT_EQ(value_of(chain.table.grad()), step == 1 ? 3 : 3 + 1 + 3) << "step " << step;
    }
  });
}

}  // namespace
}  // namespace trireme::parallel
