#include "trireme/topology/networks.h"

#include <gmock/gmock.h>

#include "trireme/base/error.h"
#include "trireme/topology/internal/ucx_object.h"

namespace trireme::topology {
namespace {

using testing::HasSubstr;

TEST(Networks, TcpIsThereAlways) { EXPECT_EQ(network_unavailable_because(kNetworkTcp), ""); }

TEST(Networks, AMisspeltOneGetsTheNearestName) {
  try {
    network_unavailable_because("ucs");
    FAIL() << "found";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean 'ucx'"));
  }
}

TEST(UcxObject, UnloadableFileSaysItsNeeds) {
  EXPECT_THAT(load_ucx_object("/nowhere/libtrireme_ucx.so").missing_because,
              testing::AllOf(HasSubstr("cannot load /nowhere/libtrireme_ucx.so"), HasSubstr("libucx0")));
}

TEST(UcxObject, AnotherVersionIsReason) {
  // Any library without such a function.
  EXPECT_THAT(load_ucx_object("libm.so.6").missing_because, HasSubstr("build it again"));
}

}  // namespace
}  // namespace trireme::topology
