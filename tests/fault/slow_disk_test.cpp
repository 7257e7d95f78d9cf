// Writing a checkpoint takes longer than the timeout after which a rank counts as unreachable.

#include <gmock/gmock.h>

#include <filesystem>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"

namespace trireme::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class SlowDisk : public testing::TestWithParam<const char*> {};

TEST_P(SlowDisk, IsNamedAndRunEndsWell) {
  const TemporaryFolder folder;
  std::vector<std::string> command = {bin("trireme"), "train", checkout("examples/quick.toml"), "-n", "2"};
  for (const std::string& setting :
       {"run.folder=" + folder.path().string(), std::string("checkpoint.asynchronous=") + GetParam(),
        std::string("checkpoint.every_steps=100"), std::string("comm.timeout_s=3"),
        std::string("comm.torch_threads=1")}) {
    command.insert(command.end(), {"--set", setting});
  }
  // A checkpoint needs about six such syncs in sequence, so it takes longer than the timeout.
  const ChildResult result =
      run(command, {{"LD_PRELOAD", bin("slow_fsync.so")}, {"TRIREME_TEST_FSYNC_S", "1.4"}});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 0 (pid "), HasSubstr("is slow: "),
                                HasSubstr("it is busy with: saving a checkpoint to ")));
  for (const char* file : {"model.safetensors", "summary.json"})
    EXPECT_TRUE(std::filesystem::exists(folder / "quick" / file)) << file;
}

INSTANTIATE_TEST_SUITE_P(Asynchronous, SlowDisk, testing::Values("true", "false"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace trireme::test
