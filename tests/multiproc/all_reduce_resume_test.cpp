// A resumed run over three hosts keeps the all-reduce algorithms that it started with, because they determine
// the order of sums.

#include <gmock/gmock.h>

#include <regex>
#include <set>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class AllReducesOfARun : public testing::Test {
 protected:
  /// Three ranks, each with a host id of its own.
  std::string train(int until_step, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> command = {bin("trireme"),
                                        "launch",
                                        "-n",
                                        "3",
                                        "--",
                                        "bash",
                                        "-c",
                                        "TRIREME_HOST_ID=host$RANK exec \"$0\" \"$@\"",
                                        bin("trireme-torch"),
                                        "train",
                                        checkout("examples/quick.toml")};
    for (const std::string& each :
         {"run.folder=" + folder_.path().string(), text("train.max_steps=", until_step),
          std::string("checkpoint.every_steps=10"), std::string("comm.torch_threads=1")}) {
      command.insert(command.end(), {"--set", each});
    }
    command.insert(command.end(), more.begin(), more.end());
    const ChildResult result = run(command, {}, 60);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    return result.out + result.err;
  }

  /// The choices in the checkpoint of that step, one line per group.
  std::set<std::string> choices_at(int step) const {
    static const std::regex kLine("[0-9,]+(\\|[0-9,]+)+ [0-9]+ (measured|forced) [^\\n]+\\n");
    std::set<std::string> lines;
    for (const auto& each :
         std::filesystem::recursive_directory_iterator(folder_.path() / "quick" / "checkpoints")) {
      const std::string path = each.path().string();
      if (!each.is_regular_file() || path.find(text("0", step, "/")) == std::string::npos) continue;
      const std::string bytes = read_file(each.path());
      for (std::sregex_iterator found(bytes.begin(), bytes.end(), kLine), end; found != end; ++found)
        lines.insert(found->str());
    }
    return lines;
  }

  TemporaryFolder folder_;
};

TEST_F(AllReducesOfARun, AreKeptInCheckpointsForResume) {
  EXPECT_THAT(train(10), HasSubstr("all-reduces between hosts: "));
  const std::set<std::string> began_with = choices_at(10);
  ASSERT_EQ(began_with.size(), 1u) << testing::PrintToString(began_with);
  EXPECT_THAT(*began_with.begin(), testing::StartsWith("0|1|2 3 measured "));
  EXPECT_THAT(train(20, {"--resume"}), HasSubstr("all-reduces between hosts, as the run began"));
  EXPECT_EQ(choices_at(20), began_with) << "no two measurements give the same seconds";
}

TEST_F(AllReducesOfARun, AreThoseNamedByResumedRun) {
  train(10);
  EXPECT_THAT(train(20, {"--resume", "--set", "comm.all_reduce=\"ring\""}),
              Not(HasSubstr("all-reduces between hosts")));
  EXPECT_EQ(choices_at(20).size(), 0u);
}

}  // namespace
}  // namespace trireme::test
