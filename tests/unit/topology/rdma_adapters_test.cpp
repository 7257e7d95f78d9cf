#include "trireme/topology/rdma_adapters.h"

#include <gmock/gmock.h>

#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"

namespace trireme::topology {
namespace {

TEST(RdmaAdapters, AreThosePortsThatHaveALink) {
  const test::TemporaryFolder system;
  const auto add = [&](const char* port, const char* state) {
    std::filesystem::create_directories(system.path() / port);
    write_file_atomic(system.path() / port / "state", state);
  };
  EXPECT_THAT(active_rdma_ports(system.path()), testing::IsEmpty());
  add("mlx5_1/ports/1", "1: DOWN\n");
  add("mlx5_0/ports/2", "4: ACTIVE\n");
  add("mlx5_0/ports/1", "2: INIT\n");
  add("rxe0/ports/1", "4: ACTIVE\n");
  std::filesystem::create_directories(system.path() / "broken/ports/1");
  EXPECT_THAT(active_rdma_ports(system.path()), testing::ElementsAre("mlx5_0:2", "rxe0:1"));
  EXPECT_THAT(active_rdma_ports(system.path() / "nowhere"), testing::IsEmpty());
}

}  // namespace
}  // namespace trireme::topology
