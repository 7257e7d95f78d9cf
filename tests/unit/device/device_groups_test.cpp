// Groups carry tensors of a device that their backend does not know: what comes out is what comes out on the
// CPU, and the CPU's tensors travel next to them.
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
