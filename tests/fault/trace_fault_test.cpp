// A rank dies while the run is traced. The traces of the other ranks are kept.

#include <gmock/gmock.h>
#include <signal.h>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trace_reading.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

TEST(TraceFault, SurvivorsWriteTheirPartsAfterKill) {
  const TemporaryFolder folder;
  std::vector<std::string> command = {bin("trireme"), "train", checkout("examples/quick.toml"),
                                      "-n",           "3",     "--trace"};
  for (const std::string& setting : {text("run.folder=", folder.path().string()), std::string("run.name=r"),
                                     std::string("train.epochs=100000"), std::string("comm.timeout_s=20")}) {
    command.insert(command.end(), {"--set", setting});
  }
  ChildProcess launcher(command);
  ASSERT_TRUE(launcher.wait_for_output("step 50  test accuracy", 60));
  const auto pids = launcher.children();  // in the order in which the ranks were started
  ASSERT_EQ(pids.size(), 3u);
  ASSERT_EQ(::kill(pids[1], SIGKILL), 0);
  const ChildResult result = launcher.wait(60);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, testing::HasSubstr("this rank's part of the trace is in"));
  for (const int rank : {0, 2}) {
    const TraceReading part = read_trace(folder / text("r/trace.rank", rank, ".json"));
    EXPECT_EQ(part.ranks.size(), 1u);
    EXPECT_GE(part.of("step", rank).size(), 50u);
    EXPECT_GE(part.of("comm", rank).size(), 100u);
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "r/trace.rank1.json"));
  EXPECT_FALSE(std::filesystem::exists(folder / "r/trace.json"));
}

TEST(TraceFault, UnwritableTraceIsWarningOnly) {
  const TemporaryFolder folder;
  const ChildResult result =
      run({bin("trireme"), "train", checkout("examples/quick.toml"), "-n", "2", "--trace",
           "run.lock/trace.json", "--set", text("run.folder=", folder.path().string())},
          {}, 60);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, testing::HasSubstr("warning: no trace: "));
  EXPECT_TRUE(std::filesystem::exists(folder / "quick/summary.json"));
}

}  // namespace
}  // namespace trireme::test
