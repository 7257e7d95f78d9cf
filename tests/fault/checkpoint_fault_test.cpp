// A rank dies while it writes its part of a checkpoint and rank 0 waits for that part.

#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

/// Whether rank 0 has written its part within one minute.
bool first_part_comes(const fs::path& checkpoints) {
  for (int look = 0; look < 1200; ++look) {
    for (const auto& entry : fs::directory_iterator(checkpoints)) {
      if (fs::exists(entry.path() / "part-0.json")) return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

class CheckpointFault : public testing::TestWithParam<const char*> {};

TEST_P(CheckpointFault, MissingPartLeavesTheOlderCheckpointNewest) {
  const TemporaryFolder folder;
  std::vector<std::string> words = {bin("trireme"), "launch", "-n", "2", "--", "/bin/sh", "-c"};
  // Step 40 of the first run is written to a good disk. In the second run the disk of rank 1 hangs.
  words.insert(words.end(),
               {"if [ $RANK = 1 ] && [ -n \"$HANG\" ]; then export LD_PRELOAD=$HANG; fi; exec \"$0\" \"$@\"",
                bin("trireme-torch"), "train", checkout("examples/quick.toml")});
  for (const std::string& setting :
       {"run.folder=" + folder.path().string(), std::string("checkpoint.every_steps=20"),
        std::string("comm.timeout_s=10"), std::string("eval.every_steps=10"),
        std::string("checkpoint.asynchronous=") + GetParam()}) {
    words.insert(words.end(), {"--set", setting});
  }
  std::vector<std::string> first = words;
  first.insert(first.end(), {"--set", "train.max_steps=40"});
  const ChildResult good = run(first, {{"HANG", ""}}, 60);
  ASSERT_EQ(good.exit_code, 0) << good.err;
  words.push_back("--resume");
  ChildProcess launcher(words, {{"HANG", bin("slow_fsync.so")}, {"TRIREME_TEST_FSYNC_S", "600"}});
  ASSERT_TRUE(launcher.wait_for_output("step 60  test accuracy", 60));
  const auto pids = launcher.children();
  ASSERT_EQ(pids.size(), 2u);
  ASSERT_TRUE(first_part_comes(folder / "quick/checkpoints"));
  ASSERT_EQ(::kill(pids[1], SIGKILL), 0);
  const ChildResult result = launcher.wait(60);
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit_code, 3) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr(text("rank 1 (pid ", pids[1], ") was killed by SIGKILL")));
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder / "quick/checkpoints"))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  EXPECT_THAT(names, ElementsAre("step-00000020", "step-00000040"));
}

INSTANTIATE_TEST_SUITE_P(Asynchronous, CheckpointFault, testing::Values("true", "false"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace trireme::test
