#include <gmock/gmock.h>

#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/image_files.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// `trireme train` on a small configuration, in a folder of its own.
class TrainCommand : public testing::Test {
 protected:
  std::vector<std::string> command(const std::string& name, int ranks,
                                   const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {
        bin("trireme"),        "train", checkout("examples/quick.toml"),         "-n",
        std::to_string(ranks), "--set", "run.folder=" + folder_.path().string(), "--set",
        "run.name=" + name};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  nlohmann::json summary(const std::string& name) const {
    return nlohmann::json::parse(read_file(folder_.path() / name / "summary.json"));
  }

  std::vector<double> losses(const std::string& name) const {
    std::vector<double> result;
    for (const std::string& line : split(read_file(folder_.path() / name / "metrics.jsonl"), '\n')) {
      const auto record = nlohmann::json::parse(line, nullptr, false);
      if (record.is_object() && record["event"] == "step") result.push_back(record["loss"].get<double>());
    }
    return result;
  }

  TemporaryFolder folder_;
};

TEST_F(TrainCommand, TwoProcessesWriteFilesOfOne) {
  const std::vector<std::string> few = {"--set", "train.max_steps=20", "--set", "run.log_every_steps=1"};
  for (const int ranks : {1, 2}) {
    const ChildResult result = run(command(std::to_string(ranks), ranks, few), {}, 60);
    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("step 20/20"));
  }
  EXPECT_EQ(summary("2")["world_size"], 2);
  EXPECT_EQ(summary("2")["steps"], 20);
  EXPECT_EQ(summary("2")["status"], "completed");
  const std::vector<double> one = losses("1"), two = losses("2");
  ASSERT_EQ(one.size(), 20u);
  ASSERT_EQ(two.size(), 20u);
  // The order of sums differs. Twenty steps of a small network stay far below this bound.
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(two[i], one[i], 1e-4 * std::abs(one[i]));
}

/// Runs the command with a limit on the private memory of each process.
ChildResult run_in(int mib, const std::vector<std::string>& command) {
  std::vector<std::string> limited = {"bash", "-c", text("ulimit -d ", mib * 1024, "; exec \"$@\""), "bash"};
  limited.insert(limited.end(), command.begin(), command.end());
  return run(limited, {}, 200);
}

// Weights and gradients are 520 MB. A process without a model takes about 200 MB.
TEST_F(TrainCommand, CutsModelLargerThanMemoryOverRanks) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer maps terabytes of its own, which counts as the process's";
#endif
  const auto settings = [](int stages) {
    std::vector<std::string> words;
    for (const std::string& setting :
         {std::string("model.hidden=[4000, 4000, 4000, 4000, 4000]"), std::string("optimizer.momentum=0"),
          std::string("checkpoint.every_steps=1"), std::string("checkpoint.asynchronous=false"),
          std::string("train.max_steps=2"), std::string("parallel.microbatches=2"),
          std::string("parallel.partition=parameters"), text("train.accumulation=", stages == 1 ? 2 : 1),
          text("parallel.pipeline=", stages), std::string("comm.torch_threads=1")})
      words.insert(words.end(), {"--set", setting});
    return words;
  };
  const ChildResult alone = run_in(600, command("alone", 1, settings(1)));
  EXPECT_EQ(alone.exit_code, 70);
  EXPECT_THAT(alone.err, AllOf(HasSubstr("out of memory: you tried to allocate"),
                               HasSubstr("parallel.pipeline"), Not(HasSubstr("bug of trireme"))));
  const ChildResult cut = run_in(600, command("cut", 4, settings(4)));
  ASSERT_EQ(cut.exit_code, 0) << cut.err;
  const ChildResult free = run(command("free", 1, settings(1)), {}, 200);
  ASSERT_EQ(free.exit_code, 0) << free.err;
  // If its buffers do not fit, MKL multiplies in another order.
  const double expected = summary("free")["train_loss"];
  EXPECT_NEAR(summary("cut")["train_loss"], expected, 1e-6 * expected);
}

/// Two classes of images of several sizes, PNG and JPEG, in folders.
class TrainOnImages : public TrainCommand {
 protected:
  TrainOnImages() {
    for (int i = 0; i < 24; ++i) {
      const std::string bytes =
          i % 3 == 0 ? jpeg_bytes(gradient(20 + i, 30)) : png_bytes(gradient(32, 20 + i, i));
      write_image(folder_ / text("images/", i % 2 == 0 ? "cat" : "dog", "/", 10 + i, ".img.png"), bytes);
    }
  }

  ChildResult train(const std::string& name, int ranks, const std::vector<std::string>& settings = {}) {
    std::vector<std::string> more;
    const std::string path = "data.path=" + (folder_ / "images").string();
    std::vector<std::string> all = {"data.name=image_folder",
                                    path,
                                    "data.image_size=16",
                                    "model.name=mlp",
                                    "data.augment=[\"resized_crop\", \"flip\"]",
                                    "train.global_batch=8",
                                    "train.max_steps=9",
                                    "train.epochs=5",
                                    "run.log_every_steps=1"};
    all.insert(all.end(), settings.begin(), settings.end());
    for (const std::string& setting : all) more.insert(more.end(), {"--set", setting});
    return run(command(name, ranks, more), {}, 60);
  }
};

TEST_F(TrainOnImages, TwoRanksSeeImagesOfOneRank) {
  ASSERT_EQ(train("one", 1, {"train.accumulation=2"}).exit_code, 0);
  const ChildResult two = train("two", 2, {"train.accumulation=1", "data.workers=3"});
  ASSERT_EQ(two.exit_code, 0) << two.err;
  EXPECT_EQ(summary("two")["weights_xxh3"], summary("one")["weights_xxh3"]);
  EXPECT_EQ(losses("two").size(), 9u);
}

TEST_F(TrainOnImages, UndecodableImageEndsRunOrIsSkipped) {
  write_image(folder_ / "images/cat/99.png", "not an image");
  const ChildResult fatal = train("fatal", 2);
  EXPECT_EQ(fatal.exit_code, 4) << fatal.err;
  EXPECT_THAT(fatal.err, AllOf(HasSubstr("images/cat/99.png"), HasSubstr("data.undecodable")));
  const ChildResult skipped = train("skipped", 2, {"data.undecodable=skip"});
  EXPECT_EQ(skipped.exit_code, 0) << skipped.err;
  EXPECT_THAT(skipped.err, AllOf(HasSubstr("images/cat/99.png"), HasSubstr("stands in for it")));
}

TEST_F(TrainCommand, BadConfigurationIsUsageErrorBeforeStart) {
  const ChildResult result = run(command("bad", 2, {"--set", "optimizer.lrr=1"}), {}, 30);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("unknown key 'optimizer.lrr' (did you mean 'optimizer.lr'?)"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "bad"));
}

TEST_F(TrainCommand, UnfitModelIsUsageErrorBeforeStart) {
  const ChildResult result = run(command("bad", 2, {"--set", "model.name=gpt"}), {}, 30);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("\"gpt\""), HasSubstr("\"synthetic\""), Not(HasSubstr("[0]"))));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "bad"));
}

TEST_F(TrainCommand, DivergenceHasExitCodeAndNamesStep) {
  const ChildResult result = run(command("wild", 2, {"--set", "optimizer.lr=1e30"}), {}, 60);
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_THAT(result.err, HasSubstr("is not a finite number on rank"));
}

TEST_F(TrainCommand, TerminationStopsRanksAtStepAndResumes) {
  const std::vector<std::string> lengthy = {"--set", "train.epochs=1000000", "--set",
                                            "run.log_every_steps=1"};
  ChildProcess child(command("stopped", 2, lengthy));
  ASSERT_TRUE(child.wait_for_output("test accuracy", 60));
  child.send_signal(SIGTERM);
  const ChildResult result = child.wait(30);
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.out << result.err;
  ASSERT_EQ(summary("stopped")["status"], "interrupted");
  const int steps = summary("stopped")["steps"];
  const ChildResult resumed = run(
      command("stopped", 2,
              {"--resume", "--set", "train.epochs=1000000", "--set", text("train.max_steps=", steps + 5)}),
      {}, 60);
  EXPECT_EQ(resumed.exit_code, 0) << resumed.out << resumed.err;
  EXPECT_EQ(summary("stopped")["steps"], steps + 5);
}

TEST_F(TrainCommand, ListOfRunsShowsTheirEnds) {
  const auto listed = [&] { return run({bin("trireme"), "runs", folder_.path().string()}).out; };
  ChildProcess killed(
      command("killed", 2, {"--set", "train.epochs=100000", "--set", "checkpoint.every_steps=0"}));
  ASSERT_TRUE(killed.wait_for_output("loss", 60)) << killed.output();
  EXPECT_THAT(listed(), HasSubstr("running"));
  for (const int rank : killed.children()) ::kill(rank, SIGKILL);
  EXPECT_EQ(killed.wait(60).exit_code, 3);
  EXPECT_THAT(listed(), HasSubstr("is gone without a word"));

  const std::vector<std::string> wild = {"--set", "optimizer.name=sgd", "--set", "optimizer.lr=1e38",
                                         "--set", "train.clip_norm=0"};
  EXPECT_EQ(run(command("wild", 2, wild), {}, 60).exit_code, 5);
  EXPECT_THAT(listed(),
              AllOf(testing::ContainsRegex("killed .* killed"), testing::ContainsRegex("wild .* diverged"),
                    HasSubstr("wild: diverged (exit code 5): step ")));
}

TEST_F(TrainCommand, RejectsUselessFolderBeforeStart) {
  write_file_atomic(folder_ / "a file", "");
  const ChildResult file =
      run(command("x", 2, {"--set", "run.folder=" + (folder_ / "a file").string()}), {}, 60);
  EXPECT_EQ(file.exit_code, 4);
  EXPECT_THAT(file.err, AllOf(HasSubstr("cannot create the folder"), Not(HasSubstr("rank 0"))));

  ASSERT_EQ(run(command("small", 2, {"--set", "train.max_steps=4"}), {}, 60).exit_code, 0);
  const ChildResult other = run(command("small", 2, {"--resume", "--set", "model.hidden=[32]"}), {}, 60);
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, AllOf(HasSubstr("cannot resume run 'small' from step 4: model.hidden was [64]"),
                               Not(HasSubstr("rank 0"))));
  EXPECT_EQ(summary("small")["status"], "completed") << "and left as it was";
  EXPECT_EQ(run(command("none", 2, {"--resume"}), {}, 60).exit_code, 4);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "none"));
}

TEST_F(TrainCommand, SameCommandResumesRun) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> modes = {
      {"zero", {"parallel.zero=3"}},
      {"tensor", {"parallel.tensor=2"}},
      {"sites", {"parallel.local_steps=3"}},
      {"compressed",
       {"parallel.compression=\"one-bit\"", "parallel.compression_warmup_steps=2", "optimizer.name=adam",
        "train.clip_norm=0"}},
      {"1f1b", {"parallel.pipeline=2"}},
      {"pipedream", {"parallel.pipeline=2", "parallel.schedule=pipedream", "train.accumulation=1"}},
      {"2bw", {"parallel.pipeline=2", "parallel.schedule=pipedream-2bw", "train.accumulation=1"}},
      {"rr", {"parallel.pipeline=2", "parallel.schedule=1f1b-rr", "train.accumulation=1"}}};
  for (const auto& [name, settings] : modes) {
    SCOPED_TRACE(name);
    std::vector<std::string> more;
    for (const std::string& setting : settings) more.insert(more.end(), {"--set", setting});
    const auto with_steps = [&](int steps, std::vector<std::string> words) {
      words.insert(words.end(), more.begin(), more.end());
      words.insert(words.end(), {"--set", text("train.max_steps=", steps)});
      return command(name, 2, words);
    };
    const ChildResult begun = run(with_steps(4, {}), {}, 60);
    EXPECT_EQ(begun.exit_code, 0) << begun.err;
    const ChildResult resumed = run(with_steps(6, {"--resume"}), {}, 60);
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_EQ(summary(name)["steps"], 6);
  }
}

TEST_F(TrainCommand, ReportsReaderThatLeavesAndContinues) {
  for (const int ranks : {1, 2}) {
    const std::string name = std::to_string(ranks);
    std::vector<std::string> words = {"bash", "-c", "\"$@\" | true", "bash"};
    for (const std::string& word : command(name, ranks)) words.push_back(word);
    const ChildResult result = run(words, {}, 60);
    EXPECT_THAT(result.err, HasSubstr("standard output is closed"));
    EXPECT_EQ(summary(name)["status"], "completed");
    EXPECT_THAT(read_file(folder_ / name / "console.log"),
                AllOf(HasSubstr("training mlp on synthetic"), HasSubstr("completed after 128 steps")));
  }
}

TEST_F(TrainCommand, ARunsFolderStandsForItsConfiguration) {
  ASSERT_EQ(run(command("again", 2, {"--set", "train.max_steps=4"}), {}, 60).exit_code, 0);
  const ChildResult result =
      run({bin("trireme"), "train", (folder_ / "again/").string(), "--resume", "--set", "train.max_steps=6"},
          {}, 60);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(summary("again")["steps"], 6);
}

TEST_F(TrainCommand, RunsPlanAndReportsMeasuredStepTime) {
  write_file_atomic(
      folder_ / "plan.toml",
      "[train]\naccumulation = 1\n[parallel]\ndata = 1\npipeline = 2\nmicrobatches = 4\ncuts = [1]\n"
      "planned_step_s = 0.0125\n");
  const ChildResult result =
      run(command("planned", 2, {"--set", "train.max_steps=6", "--plan", (folder_ / "plan.toml").string()}),
          {}, 60);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, testing::ContainsRegex("a step took [0-9.e-]+ ms; the plan said 12.5 ms"));
  EXPECT_EQ(summary("planned")["planned_step_s"], 0.0125);
  EXPECT_GT(summary("planned")["step_s"], 0);
  EXPECT_THAT(read_file(folder_ / "planned/config.toml"), HasSubstr("cuts = [1]"));
}

TEST_F(TrainCommand, CtrlCWorksWhileLibtorchIsLoaded) {
  ChildProcess early(command("early", 2));
  const std::string program = text("/proc/", early.pid(), "/comm");
  while (read_file(program) != "trireme-torch\n") {
  }
  early.send_signal(SIGINT);
  const ChildResult result = early.wait(60);
  EXPECT_EQ(result.signal, SIGINT);
  EXPECT_THAT(result.err, HasSubstr("trireme: stopped by a signal"));
}

TEST_F(TrainCommand, StartsWithoutStandardFiles) {
  std::vector<std::string> words = {"bash", "-c", "\"$@\" <&- >&-", "bash"};
  for (const std::string& word : command("closed", 2, {"--set", "train.max_steps=4"})) words.push_back(word);
  const ChildResult result = run(words, {}, 60);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(summary("closed")["steps"], 4);
}

TEST_F(TrainCommand, SigtermDuringSaveKeepsLastStep) {
  const auto heavy = [&](const std::string& name, int steps) {
    return command(name, 2,
                   {"--resume", "--set", "model.hidden=[2048,2048]", "--set", "checkpoint.every_steps=1",
                    "--set", text("train.max_steps=", steps), "--set", "run.log_every_steps=1", "--set",
                    "eval.every_steps=1000"});
  };
  const auto fresh = [&](const std::string& name, int steps) {
    std::vector<std::string> words = heavy(name, steps);
    std::erase(words, "--resume");
    return words;
  };
  ChildProcess child(fresh("killed", 100));
  ASSERT_TRUE(child.wait_for_output("step 1/100", 60));
  child.send_signal(SIGTERM);
  const ChildResult result = child.wait(60);
  ASSERT_EQ(result.exit_code, 128 + SIGTERM) << result.out << result.err;
  const int steps = summary("killed")["steps"];
  const ChildResult verified =
      run({bin("trireme"), "checkpoint", "verify", (folder_ / "killed").string()}, {}, 30);
  EXPECT_EQ(verified.exit_code, 0) << verified.out << verified.err;
  EXPECT_THAT(verified.out,
              HasSubstr(text("step-", std::string(7, '0').substr(text(steps).size() - 1), steps)));
  ASSERT_EQ(run(heavy("killed", steps + 2), {}, 60).exit_code, 0);
  ASSERT_EQ(run(fresh("whole", steps + 2), {}, 60).exit_code, 0);
  EXPECT_EQ(summary("killed")["weights_xxh3"], summary("whole")["weights_xxh3"]);
}

}  // namespace
}  // namespace trireme::test
