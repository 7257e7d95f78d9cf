// Measured cuts (parallel.partition = "time") are recorded, and a resume keeps them.

#include "trireme/train/run/internal/stage_cuts.h"

#include <gmock/gmock.h>

#include <fstream>
#include <mutex>

#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::ThrowsMessage;

class StageCuts : public SmallRuns {
 protected:
  StageCuts() {
    callbacks_.on_start = [this](const Trainer& trainer) {
      const std::lock_guard lock(mutex_);
      used_ = trainer.plan().cuts();
    };
  }
  /// Five layers.
  RunConfig cut(const std::string& name, int stages) const {
    RunConfig result = config(name);
    result.model.hidden = {16, 16, 16, 16};
    result.train.clip_norm = 0;
    result.parallel.pipeline = stages;
    result.parallel.microbatches = 4;
    result.parallel.partition = "time";
    return result;
  }
  /// In the form of parallel.cuts.
  static std::string listed(const std::vector<int>& cuts) {
    std::vector<std::string> words;
    for (const int each : cuts) words.push_back(text(each));
    return text("[", join(words), "]");
  }

  std::mutex mutex_;
  std::vector<int> used_;  ///< by the trainer of the last run
};

TEST_F(StageCuts, MeasuredCutsAreReportedEverywhere) {
  run(2, cut("measured", 2));
  ASSERT_EQ(used_.size(), 1u);
  const std::string cuts = listed(used_);
  EXPECT_THAT(file("measured", "config.toml"), HasSubstr("cuts = " + cuts));
  EXPECT_THAT(file("measured", "summary.json"), HasSubstr("\"cuts\": \"" + cuts + "\""));
  EXPECT_THAT(
      file("measured", "console.log"),
      AllOf(HasSubstr("pipeline: stages of equal measured time begin at layers 0 ("),
            HasSubstr(text(", ", used_[0], " (")), HasSubstr("parallel.cuts = " + cuts + " repeats")));
  RunConfig again = load_run_config(folder_ / "measured/config.toml");
  EXPECT_THAT(again.parallel.cuts, ElementsAre(used_[0]));
  const std::vector<int> measured = used_;
  again.run.name = "again";
  run(2, again);
  EXPECT_EQ(used_, measured);
  EXPECT_THAT(file("again", "console.log"), Not(HasSubstr("measured time")));
}

TEST_F(StageCuts, ResumeKeepsThemUnlessNamed) {
  RunConfig part = cut("resumed", 2);
  part.parallel.cuts = {4};  // not in the middle, where measured times would cut
  part.train.max_steps = 6;
  run(2, part);
  EXPECT_THAT(used_, ElementsAre(4));
  EXPECT_THAT(file("resumed", "console.log"), Not(HasSubstr("measured time")));
  part = cut("resumed", 2);
  part.train.max_steps = 9;
  run(2, part, RunStart::kResume);
  EXPECT_THAT(used_, ElementsAre(4));
  EXPECT_THAT(file("resumed", "config.toml"), HasSubstr("cuts = [4]"));
  part.train.max_steps = 12;
  part.parallel.cuts = {1};
  run(2, part, RunStart::kResume);
  EXPECT_THAT(used_, ElementsAre(1));
}

TEST_F(StageCuts, AreMeasuredAgainForNewStageCount) {
  RunConfig half = cut("wider", 2);
  half.parallel.cuts = {4};
  half.train.max_steps = 6;
  run(2, half);
  run(3, cut("wider", 3), RunStart::kResume);
  EXPECT_EQ(used_.size(), 2u);
  EXPECT_THAT(file("wider", "config.toml"), HasSubstr("cuts = " + listed(used_)));
}

TEST_F(StageCuts, EarlierCutsApplyToResumeOnly) {
  RunConfig earlier = cut("fresh", 2);
  earlier.parallel.cuts = {4};
  run(2, earlier);
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const ParallelPlan open = resolve_plan(cut("fresh", 2), 2);
    EXPECT_TRUE(open.measures_cuts());
    EXPECT_THAT(with_saved_cuts(open, context, ResumeMode::kNever).cuts(), IsEmpty());
    EXPECT_THAT(with_saved_cuts(open, context, ResumeMode::kIfPresent).cuts(), ElementsAre(4));
  });
}

TEST_F(StageCuts, RejectCheckpointCutsBeyondModel) {
  RunConfig earlier = cut("beyond", 2);
  earlier.parallel.cuts = {4};
  run(2, earlier);
  const std::filesystem::path checkpoint =
      checkpoint::list_checkpoints(folder_ / "beyond/checkpoints").back();
  std::filesystem::remove(checkpoint / "config.toml");
  std::ofstream(checkpoint / "config.toml") << "[parallel]\ncuts = [99999999999]\n";
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const ParallelPlan open = resolve_plan(cut("beyond", 2), 2);
    EXPECT_THAT(with_saved_cuts(open, context, ResumeMode::kIfPresent).cuts(), IsEmpty());
  });
}

TEST_F(StageCuts, RejectEndlessConfiguration) {
  RunConfig earlier = cut("endless", 2);
  earlier.parallel.cuts = {4};
  run(2, earlier);
  const std::filesystem::path checkpoint =
      checkpoint::list_checkpoints(folder_ / "endless/checkpoints").back();
  std::filesystem::remove(checkpoint / "config.toml");
  std::ofstream(checkpoint / "config.toml") << "[parallel]\ncuts = [4]\n#" << std::string(5 << 20, 'x');
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const ParallelPlan open = resolve_plan(cut("endless", 2), 2);
    EXPECT_THAT(with_saved_cuts(open, context, ResumeMode::kIfPresent).cuts(), IsEmpty());
  });
}

TEST_F(StageCuts, RejectAnotherStageCountWithAdvice) {
  RunConfig config = cut("named", 3);
  config.parallel.cuts = {4};
  EXPECT_THAT([&] { run(3, config); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("parallel.cuts names 1 cuts"), HasSubstr("set parallel.cuts = []"))));
}

}  // namespace
}  // namespace trireme::train
