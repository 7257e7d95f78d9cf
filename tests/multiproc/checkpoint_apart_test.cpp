// Ranks that do not see the folder of rank 0, as on hosts without a common file system.

#include <gmock/gmock.h>

#include <filesystem>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_run.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

class CheckpointApart : public testing::TestWithParam<const char*> {
 protected:
  /// Two ranks whose folder "runs" is shared, or separate with `apart`.
  void train(const std::string& name, bool apart, const std::vector<std::string>& more) const {
    std::vector<std::string> words = {bin("trireme"),
                                      "launch",
                                      "-n",
                                      "2",
                                      "--",
                                      "/bin/sh",
                                      "-c",
                                      "",
                                      bin("trireme-torch"),
                                      "train",
                                      checkout("examples/quick.toml")};
    words[7] = std::string("cd \"$HERE/") + (apart ? "$RANK" : "0") + "\" && exec \"$0\" \"$@\"";
    for (const std::string& setting :
         {std::string("run.folder=runs"), "run.name=" + name, std::string("optimizer.momentum=0.9"),
          std::string("checkpoint.every_steps=20"), std::string(GetParam())}) {
      words.insert(words.end(), {"--set", setting});
    }
    words.insert(words.end(), more.begin(), more.end());
    const ChildResult result = run(words, {{"HERE", folder_.path().string()}}, 90);
    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  }

  const TemporaryFolder folder_;
};

TEST_P(CheckpointApart, OneRankReadsAndWritesForOthers) {
  for (const char* place : {"0", "1"}) fs::create_directory(folder_ / place);
  train("apart", true, {"--set", "train.max_steps=30"});
  const ChildResult verified =
      run({bin("trireme"), "checkpoint", "verify", (folder_ / "0/runs/apart").string()}, {}, 30);
  EXPECT_EQ(verified.exit_code, 0) << verified.out;
  train("apart", true, {"--set", "train.max_steps=50", "--resume"});
  train("together", false, {"--set", "train.max_steps=50"});
  EXPECT_TRUE(fs::is_empty(folder_ / "1"));
  EXPECT_EQ(read_run(folder_ / "0/runs/apart").weights_xxh3,
            read_run(folder_ / "0/runs/together").weights_xxh3);
}

INSTANTIATE_TEST_SUITE_P(Table, CheckpointApart,
                         testing::Values("parallel.data=2", "parallel.pipeline=2",
                                         "checkpoint.asynchronous=false"));

}  // namespace
}  // namespace trireme::test
