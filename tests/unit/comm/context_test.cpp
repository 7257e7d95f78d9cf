#include "trireme/comm/context.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

TEST(Context, AloneIsAWorldOfOne) {
  const auto context = Context::join({});
  EXPECT_EQ(context->world_size(), 1);
  auto tensor = at::full({4}, 2.0);
  context->world().all_reduce(tensor);
  EXPECT_EQ(tensor.sum().item<double>(), 8.0);
  EXPECT_EQ(context->world().all_gather_text("me"), std::vector<std::string>{"me"});
}

TEST(Context, MisspeltAllReduceGetsNearestName) {
  try {
    Context::join({}, {.all_reduce = "halving_dubling"});
    FAIL() << "was taken";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'halving_doubling'"), std::string::npos)
        << error.what();
  }
}

TEST(RanksAsThreads, SumOverAllRanks) {
  run_ranks_as_threads(3, [](Context& context) {
    auto tensor = at::full({4}, context.rank() + 1.0);
    context.world().all_reduce(tensor);
    EXPECT_EQ(tensor.sum().item<double>(), 24.0);
  });
}

}  // namespace
}  // namespace trireme::comm
