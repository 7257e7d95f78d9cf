// Groups of ranks that share a GPU transfer its tensors through pinned host memory.
#include "tests/support/group_operations.h"
#include "trireme/comm/internal/backend_table.h"

namespace trireme::comm {
namespace {

class GroupsOnAGpu : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const auto reason = nccl_unavailable_because(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(GroupsOnAGpu, EqualGroupsOnTheCpu) {
  test::expect_groups_carry_what_the_cpu_carries(GetParam(), "cuda");
}

TEST_P(GroupsOnAGpu, WaitingTwiceBringsAResultOnce) {
  test::expect_waiting_twice_brings_a_result_once(GetParam(), "cuda");
}

INSTANTIATE_TEST_SUITE_P(Over, GroupsOnAGpu, testing::Values("threads", "gloo"),
                         [](const auto& row) { return std::string(row.param); });

}  // namespace
}  // namespace trireme::comm
