// A disk that fills up during a run, and a /dev/shm as small as in containers.

#include "tests/support/small_disk.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_run.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class SmallDiskTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = small_disk_unavailable_because();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

/// A run whose checkpoints of steps 50 and 100 have about 400 KiB each. The disk holds one and a half of
/// them.
class FullDisk : public SmallDiskTest, public testing::WithParamInterface<int> {
 protected:
  static std::vector<std::string> train_into(const std::filesystem::path& folder) {
    std::vector<std::string> words = {GetParam() == 1 ? bin("trireme-torch") : bin("trireme"), "train",
                                      checkout("examples/quick.toml")};
    if (GetParam() > 1) words.insert(words.end(), {"-n", text(GetParam())});
    for (const std::string& setting :
         {"run.folder=" + folder.string(), std::string("optimizer.momentum=0.9"),
          std::string("comm.timeout_s=20"), std::string("comm.torch_threads=1")}) {
      words.insert(words.end(), {"--set", setting});
    }
    return words;
  }
};

TEST_P(FullDisk, EndsRunWithLastCheckpointWhole) {
  const TemporaryFolder disk, kept, undisturbed;
  const ChildResult result = run(
      on_small_disk({.size = "600k", .folder = disk.path(), .keep = kept.path()}, train_into(disk.path())));
  EXPECT_EQ(result.exit_code, 4) << result.out << result.err;
  EXPECT_THAT(
      result.err,
      ContainsRegex("cannot (write|sync|create) [^ ]*step-00000100[^ /]*/[a-z]+[-0-9of]*.safetensors: "
                    "No space left on device; free some space"));
  std::vector<std::string> files = {"checkpoints",  "config.toml",   "console.log", "end.json",
                                    "goodput.json", "metrics.jsonl", "run.lock"};
  if (GetParam() > 1) files.insert(files.begin(), "autopsy.json");  // written by the launcher
  EXPECT_THAT(names_in(kept / "quick"), ElementsAreArray(files));
  EXPECT_THAT(names_in(kept / "quick" / "checkpoints"), ElementsAre("step-00000050"));
  const std::size_t num_files = 2 + 2 * static_cast<std::size_t>(GetParam());
  EXPECT_EQ(names_in(kept / "quick" / "checkpoints" / "step-00000050").size(), num_files);

  auto command = train_into(kept.path());
  command.push_back("--resume");
  const ChildResult resumed = run(command);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.out << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("resuming mlp on synthetic: steps 51 to 128"));
  const ChildResult quiet = run(train_into(undisturbed.path()));
  ASSERT_EQ(quiet.exit_code, 0) << quiet.err;
  const TrainedRun expected = read_run(undisturbed / "quick"), found = read_run(kept / "quick");
  EXPECT_EQ(found.weights_xxh3, expected.weights_xxh3);
  EXPECT_EQ(found.losses, expected.losses);
}

INSTANTIATE_TEST_SUITE_P(Ranks, FullDisk, testing::Values(1, 2));

class SmallSharedMemory : public SmallDiskTest {};

// The sum has 400 kB. Docker gives a container 64 MB of shared memory, whatever the size of its ranks.
TEST_F(SmallSharedMemory, IsEnoughBecauseNothingLiesThere) {
  const SmallDisk disk{.size = "64k", .folder = "/dev/shm"};
  const ChildResult control =
      run(on_small_disk(disk, {"dd", "if=/dev/zero", "of=/dev/shm/file", "bs=1k", "count=65"}));
  EXPECT_THAT(control.err, HasSubstr("No space left")) << "the disk is not small";
  const ChildResult result = run(on_small_disk(
      disk, {bin("trireme"), "launch", "-n", "2", "--", bin("rank_comm_probe"), "shm", "20", "sum"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("rank 0 of 2 over shm: sum 3"), HasSubstr("rank 1 of 2 over shm: sum 3")));
}

}  // namespace
}  // namespace trireme::test
