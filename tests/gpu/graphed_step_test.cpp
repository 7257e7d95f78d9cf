// Steps captured in CUDA graphs give the losses of steps that run without graphs.
#include <gtest/gtest.h>

#include "tests/support/graphed_loops.h"
#include "trireme/comm/internal/backend_table.h"

namespace trireme::parallel {
namespace {

class CudaGraphedLoop : public testing::TestWithParam<test::GraphedRow> {
 protected:
  void SetUp() override {
    if (const auto reason = comm::nccl_unavailable_because(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

/// Equal up to the rounding of different matrix kernels: cuBLAS has another workspace in a capture.
TEST_P(CudaGraphedLoop, LearnsLikeUngraphedSteps) {
  const test::FoundLosses plain = test::train("cuda", GraphUse::kOff, GetParam().make),
                          graphed = test::train("cuda", GraphUse::kOn, GetParam().make);
  EXPECT_EQ(graphed.graphs, 2U);
  EXPECT_GT(graphed.replays, 0);
  for (std::size_t step = 0; step < plain.losses.size(); ++step)
    EXPECT_NEAR(graphed.losses[step], plain.losses[step], 1e-4 * plain.losses[step]) << step;
}

INSTANTIATE_TEST_SUITE_P(Of, CudaGraphedLoop, testing::ValuesIn(test::kGraphedRows),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace trireme::parallel
