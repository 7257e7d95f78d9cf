// A run and its folder: write access, and the files that a start of a run reuses.

#include "trireme/train/run/run_folder.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class OneFolder : public SmallRuns {
 protected:
  /// One rank whose launcher has restarted it `restarts` times before.
  RunResult run_again(const RunConfig& config, int restarts, RunStart start = RunStart::kFresh,
                      const std::string& start_id = "") const {
    comm::LaunchEnvironment environment;
    environment.restart_count = restarts;
    environment.start_id = start_id;
    const auto context = comm::Context::join(environment, {});
    return run_training(config, *context, {.start = start, .callbacks = callbacks_});
  }
};

TEST_F(OneFolder, RejectsSecondRunOfSameName) {
  callbacks_.on_step = [&](const StepReport& report) {
    if (report.step != 3) return;
    const RunCallbacks mine = std::exchange(callbacks_, {});
    for (const RunStart start : {RunStart::kFresh, RunStart::kResume}) {
      EXPECT_THAT([&] { run(1, config("a"), start); },
                  ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("another run is writing into"),
                                                       HasSubstr(text("process ", ::getpid())))));
    }
    callbacks_ = mine;
  };
  EXPECT_EQ(run(2, config("a")).status, "completed");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a.1"));
  callbacks_ = {};
  EXPECT_EQ(run(2, config("a")).status, "completed") << "the name is free again";
  EXPECT_TRUE(std::filesystem::exists(folder_ / "a.1"));
}

TEST_F(OneFolder, RestartDoesNotContinueEarlierRun) {
  const RunResult earlier = run(1, config("a"));
  std::vector<std::int64_t> begins;
  callbacks_.on_start = [&](Trainer& trainer) { begins.push_back(trainer.steps_done()); };
  RunConfig again = config("a");
  again.run.seed = 6;
  EXPECT_NE(run_again(again, /*restarts=*/1).weights_xxh3, earlier.weights_xxh3);
  EXPECT_THAT(begins, testing::ElementsAre(0));
  EXPECT_THAT(file("a.1", "summary.json"), HasSubstr(earlier.weights_xxh3));
}

TEST_F(OneFolder, RestartOfFailedResumeIsError) {
  EXPECT_THAT([&] { run_again(config("a"), /*restarts=*/1, RunStart::kResume); },
              ThrowsMessage<DataError>(HasSubstr("no valid checkpoint in")));
}

TEST_F(OneFolder, RestartsContinueFromTheirCheckpoints) {
  const RunResult whole = run(1, config("whole"));
  RunConfig often = config("a");
  often.checkpoint.every_steps = 3;
  run(1, often);  // an earlier run, with checkpoints of later steps
  std::vector<std::int64_t> begins;
  std::int64_t dies_at = 5;
  callbacks_.on_start = [&](Trainer& trainer) { begins.push_back(trainer.steps_done()); };
  callbacks_.on_step = [&](const StepReport& report) {
    if (report.step == dies_at) throw DataError("a rank dies");
  };
  for (const int restarts : {0, 1}) {
    EXPECT_THROW(run_again(often, restarts, RunStart::kFresh, "this start"), DataError);
    dies_at = 8;
  }
  dies_at = -1;
  EXPECT_EQ(run_again(often, 2, RunStart::kFresh, "this start").weights_xxh3, whole.weights_xxh3);
  EXPECT_THAT(begins, testing::ElementsAre(0, 3, 6));
  run_again(often, 1, RunStart::kFresh, "another start");
  EXPECT_EQ(begins.back(), 0);
}

TEST_F(OneFolder, RestartBelongsToLatestResume) {
  run(1, config("a"));
  RunConfig longer = config("a");
  longer.train.max_steps = 16;
  std::vector<std::int64_t> begins;
  callbacks_.on_start = [&](Trainer& trainer) { begins.push_back(trainer.steps_done()); };
  run_again(longer, 0, RunStart::kResume, "a resume");
  EXPECT_THAT(begins, testing::ElementsAre(12));
  EXPECT_THAT(file("a", "run.lock"), HasSubstr("a resume"));
}

TEST_F(OneFolder, KilledRunLeavesNoLock) {
  std::filesystem::create_directories(folder_ / "a");
  write_file_atomic(folder_ / "a/run.lock", "{\"pid\": 1, \"host\": \"elsewhere\"");  // truncated
  EXPECT_EQ(run(1, config("a")).status, "completed");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a.1")) << "there was nothing but the lock";
}

TEST(RunLock, KeepsEarlierRunsUnderFreeNumbers) {
  const test::TemporaryFolder folder;
  const RunFolder run{folder / "a"};
  RunLock lock(run, Log());
  EXPECT_EQ(lock.start_fresh("1"), "");
  for (const char* moved : {"a.1", "a.2"}) {
    write_file_atomic(run.config(), "x");
    EXPECT_EQ(lock.start_fresh("2"), folder / moved);
    EXPECT_TRUE(std::filesystem::exists(folder / moved / "config.toml"));
    EXPECT_FALSE(std::filesystem::exists(run.config()));
    EXPECT_THROW(RunLock(run, Log()), InvalidArgument) << "the new folder is held as the old one was";
  }
  EXPECT_TRUE(lock.belongs_to("2"));
  EXPECT_FALSE(lock.belongs_to(""));
}

TEST(RunLock, IsReleasedAndNamesItsRun) {
  const test::TemporaryFolder folder;
  const RunFolder run{folder / "a"};
  { const RunLock unused(run, Log()); }
  EXPECT_FALSE(std::filesystem::exists(run.root)) << "nothing was written there";
  {
    RunLock lock(run, Log());
    lock.assign_to("first");
    write_file_atomic(run.config(), "x");
  }
  EXPECT_TRUE(RunLock(run, Log()).belongs_to("first"));
}

}  // namespace
}  // namespace trireme::train
