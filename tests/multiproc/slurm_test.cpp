// srun, sbatch, scancel and scontrol of a real Slurm, with its two nodes on this machine.

#include <gmock/gmock.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "tests/support/slurm_cluster.h"
#include "tests/support/trained_run.h"
#include "trireme/base/clock.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr double kDeadline_s = 60;

class Slurm : public testing::Test {
 protected:
  void SetUp() override {
    if (!cluster_.unavailable_because().empty()) GTEST_SKIP() << cluster_.unavailable_because();
    std::ofstream(cluster_.folder() / "secret") << "the secret of a job, which is long\n";
    std::filesystem::permissions(cluster_.folder() / "secret", std::filesystem::perms::owner_read);
  }

  std::vector<std::string> train(const std::string& name,
                                 const std::vector<std::string>& settings = {}) const {
    std::vector<std::string> words = {checkout("examples/quick.toml")};
    for (const std::string& setting :
         {text("run.folder=", cluster_.folder().string()), text("run.name=", name),
          std::string("comm.timeout_s=5"), std::string("comm.torch_threads=1")}) {
      words.insert(words.end(), {"--set", setting});
    }
    for (const auto& setting : settings) words.insert(words.end(), {"--set", setting});
    return words;
  }

  /// A step of two ranks.
  std::vector<std::string> on_one_node(const std::vector<std::string>& arguments) const {
    std::vector<std::string> words = {"srun", "--nodes=1", "--ntasks=2", "trireme-torch", "train"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return cluster_.typed(words);
  }

  /// A step of two ranks on two nodes. Each node counts as a host of its own.
  std::vector<std::string> over_both_nodes(const std::vector<std::string>& arguments) const {
    std::vector<std::string> words = {"srun",
                                      "--nodes=2",
                                      "--ntasks=2",
                                      "bash",
                                      "-c",
                                      R"(echo $$ >pid.$SLURM_PROCID; TRIREME_HOST_ID=$SLURMD_NODENAME \
           TRIREME_SECRET_FILE=$PWD/secret exec trireme train "$@")",
                                      "bash"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return cluster_.typed(words);
  }

  std::string content(const std::string& name) const {
    std::ostringstream all;
    all << std::ifstream(cluster_.folder() / name).rdbuf();
    return all.str();
  }

  /// Returns false if the file does not contain the text in time.
  bool wait_for(const std::string& name, const std::string& wanted) const {
    const auto deadline = Deadline::after_s(kDeadline_s);
    while (content(name).find(wanted) == std::string::npos) {
      if (deadline.expired()) return false;
      std::this_thread::sleep_for(Seconds(0.02));
    }
    return true;
  }

  /// Slurm delays a requeued job by two minutes. Here the test starts it after two seconds. Within the second
  /// in which its nodes were told to end it, they would reject its next start, and Slurm would give it up.
  testing::AssertionResult begins_again(const std::string& job, int restarts) const {
    const auto deadline = Deadline::after_s(kDeadline_s);
    std::optional<Deadline> in_the_queue;
    std::string now;
    while (!deadline.expired()) {
      now = cluster_.say({"scontrol", "show", "job", job});
      const auto is = [&](const std::string& what) { return now.find(what) != std::string::npos; };
      const bool again = is(text("Restarts=", restarts));
      if (again && is("JobState=RUNNING")) return testing::AssertionSuccess();
      if (again && is("JobState=PENDING")) {
        if (!in_the_queue) in_the_queue = Deadline::after_s(2);
        if (in_the_queue->expired())
          run(cluster_.typed({"scontrol", "update", "JobId=" + job, "StartTime=now"}), {}, 30);
      }
      std::this_thread::sleep_for(Seconds(0.1));
    }
    return testing::AssertionFailure() << "after " << kDeadline_s << " s: " << now << "\n"
                                       << content("slurmctld.out");
  }

  SlurmCluster cluster_;
};

TEST_F(Slurm, SrunStartsRanksThatTrainToEnd) {
  const auto result = run(on_one_node(train("a")), {}, kDeadline_s);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const auto together = read_run(cluster_.folder() / "a");
  EXPECT_EQ(together.status, "completed");
  EXPECT_EQ(together.world_size, 2);

  const auto apart = run(over_both_nodes(train("b")), {}, kDeadline_s);
  ASSERT_EQ(apart.exit_code, 0) << apart.out << apart.err;
  const auto on_two_nodes = read_run(cluster_.folder() / "b");
  EXPECT_EQ(on_two_nodes.world_size, 2);
  EXPECT_EQ(on_two_nodes.weights_xxh3, together.weights_xxh3);
}

TEST_F(Slurm, StepOfOneTaskStartsLocalRanks) {
  // As in the shells of `srun --pty bash` and of salloc, whose allocation has more tasks.
  const auto in_step_of_one = [&](const std::string& name, std::vector<std::string> step) {
    step.insert(step.end(), {"trireme", "train", "-n", "2"});
    for (const std::string& word : train(name)) step.push_back(word);
    const auto result = run(cluster_.typed(step), {}, kDeadline_s);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    return result.exit_code == 0 ? read_run(cluster_.folder() / name).world_size : 0;
  };
  EXPECT_EQ(in_step_of_one("a", {"srun", "--ntasks=1"}), 2);
  EXPECT_EQ(in_step_of_one("b", {"srun", "--ntasks=1", "env", "SLURM_NTASKS=4"}), 2);
}

TEST_F(Slurm, KilledRankEndsStepAndIsNamed) {
  ChildProcess step(over_both_nodes(train("a", {"train.epochs=100000"})));
  ASSERT_TRUE(step.wait_for_output("step 100  test accuracy", kDeadline_s));
  const std::string pid(trim(content("pid.1")));
  cluster_.say({"kill", "-KILL", pid});
  const auto result = step.wait(2 * 5 + 20);
  EXPECT_FALSE(result.timed_out) << result.out;
  EXPECT_GT(result.exit_code, 0);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("two: task 1: Killed"), testing::ContainsRegex("error: .*rank 1 .*"),
                    HasSubstr("one: task 0: Exited with exit code 3")))
      << result.err;
}

TEST_F(Slurm, JobInterruptedTwiceHasSameBits) {
  const std::vector<std::string> settings = {"train.epochs=20", "model.hidden=[512,256]",
                                             "comm.torch_threads=1"};
  const auto quiet = run(on_one_node(train("quiet", settings)), {}, kDeadline_s);
  ASSERT_EQ(quiet.exit_code, 0) << quiet.out << quiet.err;

  std::vector<std::string> words = {"sbatch",        "--parsable",
                                    "--nodes=2",     "--ntasks-per-node=1",
                                    "--output=said", checkout("docs/recipes/train.slurm")};
  const auto arguments = train("disturbed", settings);
  words.insert(words.end(), arguments.begin(), arguments.end());
  const std::string job = cluster_.say(words);
  ASSERT_TRUE(wait_for("said", "step 150  test accuracy")) << content("said");
  cluster_.say({"scancel", "--signal=TERM", job});  // Slurm does this shortly before the time limit.
  ASSERT_TRUE(begins_again(job, 1)) << content("said");
  ASSERT_TRUE(wait_for("said", "resuming mlp on synthetic")) << content("said");
  ASSERT_TRUE(wait_for("said", "step 600  test accuracy")) << content("said");
  cluster_.say({"scontrol", "requeue", job});  // Slurm does this to make room for another job.
  ASSERT_TRUE(begins_again(job, 2)) << content("said");
  ASSERT_TRUE(wait_for("said", "completed after 1280 steps")) << content("said");

  const auto expected = read_run(cluster_.folder() / "quiet"),
             found = read_run(cluster_.folder() / "disturbed");
  EXPECT_EQ(found.status, "completed");
  EXPECT_EQ(found.weights_xxh3, expected.weights_xxh3);
  EXPECT_EQ(found.logged_steps, expected.logged_steps) << "each line of metrics once";
}

}  // namespace
}  // namespace trireme::test
