// The programs of docs/training.md that resume after a kill.
#include <gmock/gmock.h>

#include <csignal>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;

struct Program {
  const char* name;
  std::vector<std::string> (*command)(const std::string& folder);
  const char* killed_at;  ///< early enough that seconds of the run remain
};

class OwnLoopResumed : public testing::TestWithParam<Program> {};

TEST_P(OwnLoopResumed, EndsWithSameBitsAfterKill) {
  const TemporaryFolder folder;
  const auto command = [&](const char* name) {
    std::vector<std::string> all = {bin("trireme"), "launch", "-n", "2", "--"};
    for (const std::string& each : GetParam().command((folder / name).string())) all.push_back(each);
    return all;
  };
  const auto weights = [](const ChildResult& result) {
    return result.out.substr(result.out.find("weights "));
  };
  const ChildResult whole = run(command("whole"), {}, 120);
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  ASSERT_THAT(whole.out, HasSubstr("weights "));

  ChildProcess killed(command("killed"));
  ASSERT_TRUE(killed.wait_for_output(GetParam().killed_at, 60)) << killed.output();
  for (const int rank : killed.children()) ::kill(rank, SIGKILL);
  ASSERT_EQ(killed.wait(60).exit_code, 3) << "it had ended before it was killed";
  const ChildResult resumed = run(command("killed"), {}, 120);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, testing::Not(HasSubstr("begins behind step 0\n")));
  EXPECT_EQ(weights(resumed), weights(whole));
}

INSTANTIATE_TEST_SUITE_P(
    Programs, OwnLoopResumed,
    testing::Values(Program{"replicas",
                            [](const std::string& folder) -> std::vector<std::string> {
                              return {bin("example_own_loop_resumed"), folder, "2000"};
                            },
                            "saved step 600"},
                    Program{"shards",
                            [](const std::string& folder) -> std::vector<std::string> {
                              return {bin("example_own_loop_sharded"), "500", "auto", folder};
                            },
                            "saved step 200"}),
    [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace trireme::test
