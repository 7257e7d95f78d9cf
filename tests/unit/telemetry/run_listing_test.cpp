#include "trireme/telemetry/run_listing.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/telemetry/run_end.h"

namespace trireme::telemetry {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

class RunListing : public testing::Test {
 protected:
  void write(const std::string& run, const char* file, const std::string& content, int minute = 0) {
    make_folder(folder_ / run);
    write_file_atomic(folder_ / run / file, content);
    using std::filesystem::file_time_type;
    const auto start = std::chrono::file_clock::from_sys(
        std::chrono::sys_seconds(std::chrono::sys_days(std::chrono::year(2026) / 11 / 21)));
    std::filesystem::last_write_time(folder_ / run / file, start + std::chrono::minutes(minute));
  }

  void write_run(const std::string& name, const std::string& lr, double loss, int minute) {
    write(name, "config.toml", text("[run]\nname = \"", name, "\"\n[optimizer]\nlr = ", lr, "\n"), minute);
    write(name, "summary.json",
          text("{\"status\":\"completed\",\"train_loss\":", loss, ",\"steps\":20,\"weights_xxh3\":\"ab\"}"),
          minute);
  }

  std::vector<std::string> names() {
    std::vector<std::string> result;
    for (const ListedRun& listed : list_runs(folder_.path())) result.push_back(listed.run.name);
    return result;
  }

  test::TemporaryFolder folder_;
};

TEST_F(RunListing, TheMostRecentRunIsTheLast) {
  write_run("b", "0.1", 1, 1);
  write_run("c", "0.1", 1, 3);
  write_run("a", "0.1", 1, 2);
  EXPECT_THAT(names(), ElementsAre("b", "a", "c"));
}

TEST_F(RunListing, RunsOfSameSecondKeepOrder) {
  for (const char* name : {"c", "a", "b"}) {
    write_run(name, "0.1", 1, 1);
    const std::filesystem::path summary = folder_ / name / "summary.json";
    const auto later = std::chrono::milliseconds(name[0] == 'c' ? 100 : name[0] == 'a' ? 200 : 300);
    std::filesystem::last_write_time(summary, std::filesystem::last_write_time(summary) + later);
  }
  EXPECT_THAT(names(), ElementsAre("c", "a", "b"));
}

TEST_F(RunListing, FailedRunSaysHowAndWhy) {
  write("bad", "metrics.jsonl", "{\"event\":\"step\",\"step\":10,\"loss\":0.5}\n");
  write_failure(folder_ / "bad/end.json", {.exit_code = 5, .message = "step 13: no number"}, 13);
  const RunData run = look_at_run(folder_ / "bad").run;
  EXPECT_EQ(run.status, "diverged");
  EXPECT_EQ(run.exit_code, 5);
  EXPECT_EQ(run.message, "step 13: no number");
  EXPECT_EQ(run.steps, 13) << "not the last one that was written down";
  const auto status_of = [&](int exit_code) {
    const std::filesystem::path path = folder_ / text(exit_code, ".json");
    write_failure(path, {.exit_code = exit_code, .message = {}}, 0);
    return read_run_end(path)->status;
  };
  EXPECT_EQ(status_of(2), "refused");
  EXPECT_EQ(status_of(3), "failed");
  write("bad", "end.json", "[[1]]");
  EXPECT_THAT(look_at_run(folder_ / "bad").problem, HasSubstr("end.json: expected"));
}

TEST_F(RunListing, CauseOfRankReplacesItsAbsence) {
  const std::filesystem::path path = folder_ / "end.json";
  const auto message_after = [&](int exit_code, const char* message) {
    write_failure(path, {.exit_code = exit_code, .message = message}, 7);
    return read_run_end(path)->message;
  };
  EXPECT_EQ(message_after(kExitComm, "rank 1 is gone"), "rank 1 is gone");
  EXPECT_EQ(message_after(kExitComm, "rank 2 is gone"), "rank 1 is gone");
  EXPECT_EQ(message_after(kExitDiverged, "no number"), "no number");
  EXPECT_EQ(message_after(kExitComm, "rank 3 is gone"), "no number");
  EXPECT_EQ(message_after(kExitUsage, "no such key"), "no number") << "the first cause stays";
}

TEST_F(RunListing, RunWithoutLiveProcessIsKilled) {
  write("gone", "config.toml", "");
  write("gone", "run.lock",
        text("{\"pid\": 7, \"host\": \"", host_name(), "\", \"since\": \"2026-11-21T00:03:00Z\"}"));
  const auto look = [&] { return look_at_run(folder_ / "gone").run; };
  EXPECT_EQ(look().status, "killed");
  EXPECT_THAT(look().message, HasSubstr(text("process 7 on ", host_name(), " since 2026-11-21T00:03:00Z")));
  const int lock = ::open((folder_ / "gone/run.lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  EXPECT_EQ(look().status, "running");
  ::close(lock);
  EXPECT_EQ(look().status, "killed") << "as the kernel has given its lock back";
  write("gone", "run.lock", "{\"pid\": 7, \"host\": \"elsewhere\"}");
  EXPECT_EQ(look().status, "unfinished") << "locks of other hosts may not be seen here";
}

TEST_F(RunListing, OtherFolderHasProblemAndHidesNothing) {
  write_run("good", "0.1", 1, 1);
  write("notes", "todo.txt", "x");
  write("torn", "summary.json", "{\"status\"");
  write_file_atomic(folder_ / "a file", "is no folder");
  const std::vector<ListedRun> runs = list_runs(folder_.path());
  ASSERT_THAT(names(), testing::UnorderedElementsAre("notes", "torn", "good"));
  EXPECT_EQ(runs.back().problem, "");
  const std::string problems = runs[0].problem + runs[1].problem;
  EXPECT_THAT(problems, HasSubstr("notes is no run's folder"));
  EXPECT_THAT(problems, HasSubstr("summary.json: expected"));
}

// A folder of runs may be untrusted.
TEST(SecurityRunListing, FifoIsProblemAndDoesNotBlock) {
  for (const char* name : {"config.toml", "metrics.jsonl", "summary.json", "end.json", "run.lock"}) {
    const test::TemporaryFolder folder;
    make_folder(folder / "a");
    write_file_atomic(folder / "a/metrics.jsonl", "{\"event\":\"step\",\"step\":1,\"loss\":2.0}\n");
    std::filesystem::remove(folder / "a" / name);
    ASSERT_EQ(::mkfifo((folder / "a" / name).c_str(), 0666), 0);
    const std::vector<ListedRun> listed = list_runs(folder.path());
    ASSERT_EQ(listed.size(), 1u) << name;
    if (std::string(name) != "run.lock") {
      EXPECT_THAT(listed[0].problem, HasSubstr("FIFO")) << name;
    }
  }
}

TEST_F(RunListing, ARunWithoutSummaryIsUnfinished) {
  write("going", "metrics.jsonl", "{\"event\":\"step\",\"step\":7,\"loss\":0.5,\"samples_per_s\":90.0}\n");
  const std::vector<ListedRun> runs = list_runs(folder_.path());
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].run.status, "unfinished");
  EXPECT_EQ(runs[0].run.steps, 7);
}

TEST_F(RunListing, MissingFolderIsErrorWithName) {
  EXPECT_THAT(
      [&] { list_runs(folder_ / "absent"); },
      testing::ThrowsMessage<DataError>(testing::AllOf(HasSubstr("absent"), HasSubstr("trireme runs DIR"))));
}

TEST_F(RunListing, ComparisonHasDifferentSettingsAndEveryOutcome) {
  write_run("a", "0.1", 1.5, 1);
  write_run("b", "0.05", 1.25, 2);
  write("c", "config.toml", "[optimizer]\nlr = 0.1\nname = \"sgd\"\n");
  write("c", "metrics.jsonl", "{\"event\":\"step\",\"step\":9,\"loss\":0.5,\"samples_per_s\":90.0}\n");
  const std::vector<RunData> runs = {read_run(folder_ / "a"), read_run(folder_ / "b"),
                                     read_run(folder_ / "c")};
  const RunComparison comparison = compare_runs(runs);
  EXPECT_THAT(comparison.settings, ElementsAre(Pair("optimizer.lr", ElementsAre("0.1", "0.05", "0.1")),
                                               Pair("optimizer.name", ElementsAre("-", "-", "sgd"))));
  ASSERT_EQ(comparison.outcomes.size(), 3u);
  const Outcome &steps = comparison.outcomes[0], &loss = comparison.outcomes[1];
  EXPECT_EQ(steps.name, "steps");
  EXPECT_EQ(steps.difference(2), -11);
  EXPECT_EQ(loss.name, "train_loss");
  EXPECT_EQ(loss.difference(0), 0);
  EXPECT_EQ(loss.difference(1), -0.25);
  EXPECT_EQ(loss.difference(2), std::nullopt) << "an unfinished run has no mean of its last epoch";
  EXPECT_EQ(comparison.outcomes[2].name, "samples_per_s") << "the unfinished run's last one";
}

TEST_F(RunListing, LongRunIsReadFromItsEnd) {
  std::string lines = "{\"event\":\"eval\",\"step\":1,\"test_accuracy\":0.1}\nno line of ours\n";
  lines += "{\"event\":\"eval\",\"step\":2,\"test_accuracy\":0.2,\"samples\":7}\n";
  std::int64_t step = 2;
  while (lines.size() < 5 << 20) {
    ++step;
    lines +=
        text("{\"event\":\"step\",\"step\":", step, ",\"loss\":", 1.0 / static_cast<double>(step), "}\n");
  }
  write("long", "metrics.jsonl", lines + "{\"event\":\"st");
  const RunData run = look_at_run(folder_ / "long").run;
  EXPECT_EQ(run.steps, step);
  EXPECT_NEAR(*run.result("loss"), 1.0 / static_cast<double>(step), 1e-9);
  EXPECT_EQ(run.result("test_accuracy"), 0.2);
  EXPECT_THAT(run.measures, ElementsAre("test_accuracy"));
  EXPECT_LT(run.curve("loss").size(), static_cast<std::size_t>(step) / 4) << "the others were not read";
}

TEST_F(RunListing, EndOfShortRunIsWholeRun) {
  write("short", "metrics.jsonl",
        "{\"event\":\"step\",\"step\":1,\"loss\":2}\n{\"event\":7,\"step\":2,\"loss\":1}\n");
  const RunData run = look_at_run(folder_ / "short").run;
  EXPECT_EQ(run.steps, 2);
  EXPECT_EQ(run.curve("loss").size(), 2U);
  write("empty", "metrics.jsonl", "");
  EXPECT_EQ(look_at_run(folder_ / "empty").run.steps, 0);
}

TEST_F(RunListing, KnowsWhichResultsAreCounts) {
  write("a", "summary.json", "{\"status\":\"completed\",\"world_size\":2,\"train_loss\":2.0}");
  const RunData run = look_at_run(folder_ / "a").run;
  EXPECT_TRUE(run.is_count("world_size"));
  EXPECT_FALSE(run.is_count("train_loss"));
  EXPECT_FALSE(run.is_count("absent"));
}

}  // namespace
}  // namespace trireme::telemetry
