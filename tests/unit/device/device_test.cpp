// The device of a rank, by name and by its place on the host.
#include "trireme/comm/device.h"

#include <gmock/gmock.h>

#include "tests/support/stand_in_device.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"

namespace trireme::comm {
namespace {

using test::kNumStandInDevices;
using test::kStandInDevice;
using testing::Contains;
using testing::HasSubstr;

constexpr auto kStandIn = c10::DeviceType::PrivateUse1;

template <class Work>
std::string rejection_of(const Work& work) {
  try {
    work();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Device, NamesIncludeRegisteredBackend) {
  EXPECT_THAT(device_names(), Contains(kStandInDevice));
  EXPECT_EQ(device_type_of(kStandInDevice), kStandIn);
  EXPECT_EQ(name_of(kStandIn), kStandInDevice);
  EXPECT_EQ(device_type_of("cpu"), c10::kCPU);
  EXPECT_THAT(rejection_of([] { device_type_of("cudo"); }), HasSubstr("device \"cudo\" is not known"));
}

TEST(Device, RejectsMissingCudaWithReason) {
  if (device_type_of("auto") == c10::kCUDA) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_THAT(rejection_of([] { device_type_of("cuda"); }),
              testing::AllOf(HasSubstr("device \"cuda\" cannot be used here: "), HasSubstr("GPU")));
}

TEST(Device, RankHasItsDeviceUnlessBackendShares) {
  EXPECT_EQ(device_of_rank(kStandIn, 2, DeviceUse::kOwn), c10::Device(kStandIn, 2));
  EXPECT_EQ(device_of_rank(kStandIn, kNumStandInDevices + 1, DeviceUse::kShared), c10::Device(kStandIn, 1));
  EXPECT_EQ(device_of_rank(c10::kCPU, 17, DeviceUse::kOwn), c10::Device(c10::kCPU));
  EXPECT_THAT(
      rejection_of([] { device_of_rank(kStandIn, kNumStandInDevices, DeviceUse::kOwn); }),
      HasSubstr("rank 4 of this host has no stand_in device of its own: there are 4; start at most 4 ranks "
                "per host, or let ranks share devices with comm.backend = \"shm\""));
}

TEST(Device, AContextKnowsItsRanks) {
  run_ranks_as_threads(2,
                       [](Context& context) {
                         EXPECT_EQ(context.device(),
                                   c10::Device(kStandIn, static_cast<c10::DeviceIndex>(context.rank())));
                         EXPECT_EQ(context.world().transport(context.device()), Transport::kBuffered);
                       },
                       {.device = kStandInDevice});
}

}  // namespace
}  // namespace trireme::comm
