// Runs with optimizer state in files. The disk is too small or fails during a run, or processes are killed.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/small_disk.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_run.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

class OffloadFaults : public testing::Test {
 protected:
  std::vector<std::string> train(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {bin("trireme"), "train", checkout("examples/quick.toml")};
    for (const std::string& setting :
         {"run.folder=" + runs_.path().string(), std::string("optimizer.name=adamw"),
          std::string("offload.optimizer=files"), "offload.folder=" + scratch_.path().string(),
          std::string("comm.timeout_s=20"), std::string("comm.torch_threads=1")}) {
      words.insert(words.end(), {"--set", setting});
    }
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  const TemporaryFolder runs_, scratch_;
};

TEST_F(OffloadFaults, TooSmallDiskFailsBeforeFirstStep) {
  const std::string reason = small_disk_unavailable_because();
  if (!reason.empty()) GTEST_SKIP() << reason;
  for (const char* ranks : {"1", "2"}) {
    const ChildResult result =
        run(on_small_disk({.size = "64k", .folder = scratch_.path()}, train({"-n", ranks})));
    EXPECT_EQ(result.exit_code, 4) << result.out << result.err;
    EXPECT_THAT(result.err,
                ContainsRegex("rank [01]: cannot reserve [0-9]+ bytes, of which [0-9]+ are free, of the "
                              "optimizer's state in a file of [^:]*: No space left on device; free some"));
    EXPECT_THAT(result.out, testing::Not(HasSubstr("step 1 "))) << result.out;
  }
}

TEST_F(OffloadFaults, NamesFolderWithoutWritePermission) {
  std::filesystem::permissions(scratch_.path(), std::filesystem::perms::owner_read);
  const ChildResult result =
      run({"setpriv", "--reuid=65534", "--clear-groups", bin("trireme"), "train", "--help"});
  if (result.exit_code != 0) GTEST_SKIP() << "no other user can run programs here: " << result.err;
  std::vector<std::string> words = {"setpriv", "--reuid=65534", "--clear-groups"};
  for (const std::string& word : train()) words.push_back(word);
  std::filesystem::permissions(runs_.path(), std::filesystem::perms::all);
  const ChildResult refused = run(words);
  EXPECT_EQ(refused.exit_code, 4) << refused.out << refused.err;
  EXPECT_THAT(refused.err, AllOf(HasSubstr("rank 0: cannot create the storage of the optimizer's state"),
                                 HasSubstr(scratch_.path().string()), HasSubstr("Permission denied")));
}

TEST_F(OffloadFaults, FailedWriteEndsRanksAndNamesOne) {
  // From step 5 on, files of one rank are limited to 1000 bytes, less than the optimizer state needs.
  const char* script = R"(
    trap '' XFSZ
    "$@" & run=$!
    for _ in $(seq 400); do
      rank=$(for each in $(pgrep -P $run); do
               ls -l /proc/$each/fd 2>/dev/null | grep -q trireme-scratch && echo $each; done | tail -n 1)
      [ -n "$rank" ] && grep -q '"step":5,' "$METRICS" 2>/dev/null && break
      sleep 0.05
    done
    prlimit --fsize=1000 --pid $rank || exit 99
    wait $run)";
  std::vector<std::string> words = {
      "env", "METRICS=" + (runs_ / "quick" / "metrics.jsonl").string(), "bash", "-c", script, "bash"};
  for (const std::string& word :
       train({"-n", "2", "--set", "train.epochs=1000", "--set", "run.log_every_steps=1", "--set",
              "checkpoint.every_steps=0", "--set", "eval.every_steps=1000000"}))
    words.push_back(word);
  const ChildResult result = run(words);
  EXPECT_EQ(result.exit_code, 4) << result.out << result.err;
  EXPECT_THAT(
      result.err,
      AllOf(ContainsRegex(
                "rank [01]: cannot write [0-9]+ bytes at [0-9]+ of the optimizer's state in a file of"),
            HasSubstr(scratch_.path().string()), HasSubstr("File too large")));
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.path()));
}

TEST_F(OffloadFaults, KilledRunsLeaveNothingAndContinue) {
  const char* script = R"(
    "$@" & run=$!
    for _ in $(seq 400); do
      [ -d "$CHECKPOINT" ] && break
      sleep 0.05
    done
    rm -rf "$SCRATCH"/*
    kill -9 $(pgrep -P $run) $run
    wait $run)";
  std::vector<std::string> words = {
      "env",
      "CHECKPOINT=" + (runs_ / "quick" / "checkpoints" / "step-00000050").string(),
      "SCRATCH=" + scratch_.path().string(),
      "bash",
      "-c",
      script,
      "bash"};
  const auto twice = train({"-n", "2", "--set", "train.epochs=4"});
  words.insert(words.end(), twice.begin(), twice.end());
  EXPECT_EQ(run(words).exit_code, 137);
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.path()));
  std::vector<std::string> again = twice;
  again.push_back("--resume");
  const ChildResult resumed = run(again);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.out << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("resuming mlp"));
  std::vector<std::string> quiet = train(
      {"-n", "2", "--set", "train.epochs=4", "--set", "run.name=quiet", "--set", "offload.optimizer=none"});
  ASSERT_EQ(run(quiet).exit_code, 0);
  EXPECT_EQ(read_run(runs_ / "quick").weights_xxh3, read_run(runs_ / "quiet").weights_xxh3);
}

}  // namespace
}  // namespace trireme::test
