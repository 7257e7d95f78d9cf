// The example of docs/wire.md behaves as the page says.

#include <gmock/gmock.h>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"

namespace trireme::test {
namespace {

TEST(TwoNodes, ServerSumsOverTcpAndSharedMemory) {
  const TemporaryFolder folder;
  for (const std::string& address :
       {std::string("tcp:127.0.0.1:0"), "unix:" + (folder / "s/node").string()}) {
    const ChildResult result = run({bin("example_two_nodes"), address}, {}, 60);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, testing::HasSubstr("the server says: 524288")) << address;
  }
}

}  // namespace
}  // namespace trireme::test
