// Real faults of running ranks. The launcher names the rank and the cause, and `trireme autopsy` repeats
// them.

#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/clock.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Three ranks that reduce in a loop and have already run some steps, with a folder for the evidence.
class Autopsy : public testing::Test {
 protected:
  static constexpr int kRanks = 3;

  void start(const std::vector<std::string>& more = {},
             const std::map<std::string, std::string>& environment = {}) {
    std::vector<std::string> words = {
        bin("trireme"),         "launch", "-n", text(kRanks), "--autopsy", folder_.path().string(), "--",
        bin("rank_fault_loop"), "30",     "60"};
    words.insert(words.end(), more.begin(), more.end());
    launcher_ = std::make_unique<ChildProcess>(words, environment);
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_TRUE(launcher_->wait_for_output(text("[", rank, "] step 20"), 60));
    }
    pids_ = launcher_->children();
    ASSERT_EQ(pids_.size(), std::size_t{kRanks});
  }
  int pid_of(int rank) const { return pids_.at(static_cast<std::size_t>(rank)); }

  nlohmann::json verdict() const {
    const ChildResult result = run({bin("trireme"), "autopsy", folder_.path().string(), "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out);
  }

  const TemporaryFolder folder_;
  std::unique_ptr<ChildProcess> launcher_;
  std::vector<int> pids_;
};

TEST_F(Autopsy, NamesKilledRankAtEndAndAfterwards) {
  start();
  ::kill(pid_of(1), SIGKILL);
  const ChildResult end = launcher_->wait(40);
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.err, HasSubstr(text("autopsy: rank 1 (pid ", pid_of(1), ") was killed by SIGKILL")));
  const nlohmann::json found = verdict();
  EXPECT_EQ(found.at("cause"), "killed");
  EXPECT_EQ(found.at("ranks"), nlohmann::json({1}));
  EXPECT_THAT(found.at("action").get<std::string>(), HasSubstr("reducing"));
  EXPECT_THAT(found.at("operation").get<std::string>(), HasSubstr("all_reduce #"));
  EXPECT_THAT(end.err, HasSubstr(found.at("paragraph").get<std::string>()));
}

TEST_F(Autopsy, NamesStoppedRankWhileRunHangs) {
  start();
  ::kill(pid_of(2), SIGSTOP);
  ASSERT_TRUE(launcher_->wait_for_output("the run stands still: ", 20));
  const nlohmann::json found = verdict();
  EXPECT_EQ(found.at("cause"), "stopped");
  EXPECT_EQ(found.at("ranks"), nlohmann::json({2}));
  ::kill(pid_of(2), SIGCONT);
  EXPECT_TRUE(launcher_->wait_for_output("the run makes progress again", 20));
}

TEST_F(Autopsy, NamesSleepingRankAndWaitingRanks) {
  start({"sleep"});
  ASSERT_TRUE(launcher_->wait_for_output("the run stands still: ", 20));
  const nlohmann::json found = verdict();
  EXPECT_EQ(found.at("cause"), "never entered");
  EXPECT_EQ(found.at("ranks"), nlohmann::json({1}));
  EXPECT_THAT(found.at("paragraph").get<std::string>(),
              AllOf(HasSubstr("ranks 0, 2 wait for it"), HasSubstr("is in clock_nanosleep")));
  EXPECT_EQ(found.at("evidence").at("ranks").at(0).at("waits_for"), nlohmann::json({1}));
}

TEST_F(Autopsy, DoesNotReportPausesLikeEarlierOnes) {
  start({"pauses"});
  ASSERT_TRUE(launcher_->wait_for_output("[1] pause 3", 60));
  launcher_->send_signal(SIGTERM);
  const std::string errors = launcher_->wait(40).err;
  const std::string report = "the run stands still: ";
  std::size_t reports = 0;
  for (std::size_t at = errors.find(report); at != std::string::npos; at = errors.find(report, at + 1))
    ++reports;
  EXPECT_EQ(reports, 1U) << errors;  // that of the first pause
}

TEST_F(Autopsy, IsPrintedWhenEvidenceDiskHangs) {
  start({}, {{"LD_PRELOAD", bin("slow_fsync.so")}, {"TRIREME_TEST_FSYNC_S", "30"}});
  ::kill(pid_of(1), SIGSTOP);
  ASSERT_TRUE(launcher_->wait_for_output("the run stands still: ", 25));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "autopsy.json")) << "the disk has answered";
}

TEST_F(Autopsy, NamesTheRankWithAnotherOperation) {
  start({"mismatch"});
  EXPECT_EQ(launcher_->wait(40).exit_code, 3);
  const nlohmann::json found = verdict();
  EXPECT_EQ(found.at("cause"), "mismatched operations") << found.at("paragraph");
  EXPECT_EQ(found.at("ranks"), nlohmann::json({1}));
}

TEST_F(Autopsy, NamesTheRankThatThrows) {
  start({"throw"});
  EXPECT_EQ(launcher_->wait(40).exit_code, 4);
  const nlohmann::json found = verdict();
  EXPECT_EQ(found.at("cause"), "exception") << found.at("paragraph");
  EXPECT_EQ(found.at("ranks"), nlohmann::json({1}));
  EXPECT_THAT(found.at("paragraph").get<std::string>(), HasSubstr("the file is damaged"));
}

TEST_F(Autopsy, RunWithoutEvidenceUsesItsEnd) {
  write_file_atomic(folder_ / "config.toml", "[run]\nname = \"quick\"\n");
  write_file_atomic(
      folder_ / "end.json",
      R"({"status": "failed", "exit_code": 3, "message": "all_reduce #9 of group world: rank 1 (pid 7) )"
      R"(died", "steps": 480})");
  EXPECT_EQ(verdict().at("cause"), "lost contact");
  EXPECT_EQ(verdict().at("ranks"), nlohmann::json({1}));
}

TEST_F(Autopsy, FolderWithoutRunIsError) {
  for (const std::string& given : {folder_.path().string(), (folder_ / "none").string()}) {
    const ChildResult result = run({bin("trireme"), "autopsy", given});
    EXPECT_EQ(result.exit_code, 4);
    EXPECT_THAT(result.err, AllOf(HasSubstr(given), HasSubstr("folder"))) << result.err;
  }
}

}  // namespace
}  // namespace trireme::test
