// Groups transfer tensors of a device that their backend does not support. Results are those of the CPU, and
// CPU tensors can be transferred at the same time.
#include "tests/support/group_operations.h"
#include "tests/support/stand_in_device.h"

namespace trireme::comm {
namespace {

class DeviceGroups : public testing::TestWithParam<const char*> {};

TEST_P(DeviceGroups, EqualGroupsOnTheCpu) {
  test::expect_groups_carry_what_the_cpu_carries(GetParam(), test::kStandInDevice);
}

TEST_P(DeviceGroups, WaitingTwiceBringsAResultOnce) {
  test::expect_waiting_twice_brings_a_result_once(GetParam(), test::kStandInDevice);
}

INSTANTIATE_TEST_SUITE_P(Over, DeviceGroups, testing::Values("threads", "gloo"),
                         [](const auto& row) { return std::string(row.param); });

}  // namespace
}  // namespace trireme::comm
